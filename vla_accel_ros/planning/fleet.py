"""Robots on one engine, from batch curves: how many chunks a second it can make, and for how many robots.

Frames are computed one by one as they are due, because arithmetic gains little from batching; chunks share
denoise steps. A full queue is late: BUSY is the load of the device at which the 99th percentile was still in
time on an H200 (bench/results/fleet.json). Every robot holds a slot, so memory limits their number, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from vla_accel_ros.planning.device import Device
from vla_accel_ros.planning.memory import FRAME, memory, room
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.work import Sizes, Work

BATCHES = (1, 2, 4, 8, 16)
BUSY = 0.75


@dataclass(frozen=True)
class FleetPlan:
    """curve: seconds of frames, and of chunks, by batch size. chunks_hz: what the engine makes if it does
    nothing else, with `together` chunks in a step. robots: how many it can promise the rate, and has memory
    for. load: share of the engine that the asked robots use. memory_gb: with the asked robots."""

    curve: dict[int, tuple[float, float]]
    together: int
    chunks_hz: float
    robots: int
    load: float
    memory_gb: float


def plan_fleet(
    sizes: Sizes,
    device: Device,
    work: Work,
    robots: int,
    rate_hz: float,
    slots: int = 5,
    keep_exact: bool = True,
    text: bool = False,
) -> FleetPlan:
    """Plan for robots that each want rate_hz chunks a second, every one from its own frame.

    slots: of the pool, besides one for each robot. keep_exact, text: see planning.memory.
    Raises ValueError for no robots, no rate or no slot.
    """
    if robots < 1 or not 0 < rate_hz < inf:
        raise ValueError(f"{robots} robots at {rate_hz} Hz: give at least one, and a rate above 0.")
    plans = {batch: make_plan(sizes, device, replace(work, batch=batch)) for batch in BATCHES}
    frame = plans[1].frame[0]
    seconds = {batch: frame + plan.action[0] / batch for batch, plan in plans.items()}
    together = min((batch for batch in BATCHES if batch <= robots), key=lambda batch: seconds[batch])
    chunks_hz = 1.0 / seconds[together]
    alone = replace(work, batch=1, fast_memory=device.fast_memory)

    def held(count: int) -> int:
        return memory(sizes, alone, device, slots + count, FRAME, together, keep_exact, text).total

    seated = int((room(device) - held(0)) // (held(1) - held(0)))  # it grows by the same for every robot
    return FleetPlan(
        curve={batch: (plan.frame[0], plan.action[0]) for batch, plan in plans.items()},
        together=together,
        chunks_hz=chunks_hz,
        robots=max(0, min(int(BUSY * chunks_hz / rate_hz), seated)),
        load=robots * rate_hz / chunks_hz,
        memory_gb=held(robots) / 1e9,
    )
