"""The prediction: times of the stages, of a whole frame, memory, power, and the rates that follow.

A frame is encode and prefill. An action is a chunk by denoising or, for a token policy, the decodes after its
prefill. Promised rates use the slow end of the prediction, and leave SPARE of the device for what is not in
the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vla_accel_ros.planning.cost import Time, total
from vla_accel_ros.planning.device import Device
from vla_accel_ros.planning.memory import Memory, memory, parts, room
from vla_accel_ros.planning.operations import total_flops, total_launches
from vla_accel_ros.planning.work import ACTION_TOKENS, STAGES, Sizes, Work

SPARE = 0.1


@dataclass(frozen=True)
class Stage:
    """time: of all its launches, one after another. bytes: read and written, without a cache."""

    time: Time
    launches: int
    flops: float
    bytes: float


@dataclass(frozen=True)
class Plan:
    """stages: those of STAGES that the model has. shared: device time [s] of a chunk among others in
    staggered seats, None = chunks are computed one by one. parts: see planning.memory. slots, seats,
    keep_exact, text: as given to make_plan. Triples of seconds are (predicted, least, most)."""

    sizes: Sizes
    device: Device
    work: Work
    stages: Mapping[str, Stage]
    memory: Memory
    shared: tuple[float, float, float] | None = None
    parts: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    slots: int = 5
    seats: int = 0
    keep_exact: bool = True
    text: bool = False

    @property
    def frame(self) -> tuple[float, float, float]:
        """Seconds of encode and prefill: predicted, least, most."""
        return self._sum(("encode", "prefill"))

    @property
    def action(self) -> tuple[float, float, float]:
        """Seconds from a prefix to a chunk: predicted, least, most. A pi0-FAST's chunk has as many tokens as
        it may have."""
        if "denoise" in self.stages or "forward" in self.stages:
            return self._sum(("denoise", "forward"))
        a, b, c = self._sum(("decode",))
        decodes = getattr(self.sizes, "max_action_tokens", ACTION_TOKENS) - 1
        return decodes * a, decodes * b, decodes * c

    @property
    def chunk(self) -> tuple[float, float, float]:
        """Device time [s] of a chunk, alone or among others: predicted, least, most."""
        return self.shared or self.action

    @property
    def latency(self) -> tuple[float, float, float]:
        """Seconds from an image in host memory to its chunk in host memory, one after another: predicted,
        least, most."""
        host = self.device.value("frame_us") / 1e6
        within = host * self.device.numbers["frame_us"].within
        spread = (host, host - within, host + within)
        a, b, c = (sum(parts) for parts in zip(self.frame, self.action, spread))
        return a, b, c

    @property
    def fits(self) -> bool:
        """Whether the memory is sufficient."""
        return self.memory.total <= room(self.device)

    @property
    def watts(self) -> float:
        """The device's power limit in this mode."""
        return self.device.watts

    def action_hz(self, vision_hz: float) -> float:
        """Return the chunks a second that can be promised beside vision_hz frames a second; 0 if none can."""
        share = 1.0 - SPARE - vision_hz * self.frame[2]
        return max(0.0, share / self.chunk[2])

    @property
    def vision_hz(self) -> float:
        """Frames a second that can be promised if each yields one chunk."""
        return (1.0 - SPARE) / (self.frame[2] + self.chunk[2])

    def _sum(self, names: tuple[str, ...]) -> tuple[float, float, float]:
        times = [self.stages[name].time for name in names if name in self.stages]
        a, b, c = (sum(getattr(t, end) for t in times) / 1e6 for end in ("us", "low_us", "high_us"))
        return a, b, c


def make_plan(
    sizes: Sizes,
    device: Device,
    work: Work,
    slots: int = 5,
    seats: int = 0,
    keep_exact: bool = True,
    text: bool = False,
) -> Plan:
    """Plan a model on a device. slots: prefixes of the pool. seats: of staggered chunks, 0 = none.
    keep_exact, text: see planning.memory.

    Raises ValueError if the device does not multiply the precision's dtype, or if there is no slot.
    """
    from vla_accel_ros.planning.stages import operations  # needs torch

    if slots < 1:
        raise ValueError(f"slots is {slots}; give 1 or more.")
    work = replace(work, fast_memory=device.fast_memory)
    ops = operations(sizes, work)
    for op in (op for name in STAGES for op in ops.get(name, ())):
        device.rate(op.compute)
    stages = {
        name: Stage(
            total(ops[name], device),
            total_launches(ops[name]),
            total_flops(ops[name]),
            sum(op.count * op.bytes for op in ops[name]),
        )
        for name in STAGES
        if ops.get(name)
    }
    planned = memory(sizes, work, device, slots, seats=seats, keep_exact=keep_exact, text=text)
    by_part = parts(sizes, work, text, keep_exact)
    plan = Plan(sizes, device, work, stages, planned, None, by_part, slots, seats, keep_exact, text)
    if seats < 2 or "denoise" not in stages:
        return plan
    together = total(operations(sizes, replace(work, batch=seats))["denoise"], device)
    microseconds = 1e6 * seats
    return replace(
        plan,
        shared=(together.us / microseconds, together.low_us / microseconds, together.high_us / microseconds),
    )
