"""Compare wanted rates with a plan: what will be late, by how much, and which option mends it.

Late: impossible with the predicted times. Doubtful: impossible at the slow end of the prediction. Each option
is tried as a plan of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.planning.plan import SPARE, Plan, make_plan
from vla_accel_ros.planning.work import ENGINE_PRECISIONS, Work

SEATS = range(2, 65)
"""Numbers of staggered chunks that an engine takes (engine.config.MOST_SEATS)."""


@dataclass(frozen=True)
class Wanted:
    """Frames and chunks a second, and the largest age of a chunk [s]; None = any age. Raises ValueError if a
    value is negative or not finite."""

    vision_hz: float
    action_hz: float
    max_age_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"{name} is {value}; give a number of 0 or more.")


@dataclass(frozen=True)
class Verdict:
    """late, doubtful: a sentence for each problem. mends: options with which nothing is late."""

    late: tuple[str, ...]
    doubtful: tuple[str, ...]
    mends: tuple[str, ...]
    load: float

    @property
    def line(self) -> str:
        """The whole verdict in one line."""
        if not self.late and not self.doubtful:
            return f"the plan keeps the rates: {self.load:.0%} of the device"
        problems = "; ".join(self.late or self.doubtful)
        mend = f"; in time with {' or '.join(self.mends)}" if self.mends else "; no single option mends it"
        return f"{'late' if self.late else 'may be late'} by the plan: {problems}{mend}"


def judge(plan: Plan, wanted: Wanted) -> Verdict:
    """Compare the rates with the plan, and look for options if they are not kept."""
    problems, doubtful = _late(plan, wanted, 0), _late(plan, wanted, 2)
    mends = _mends(plan, wanted, 0 if problems else 2) if problems or doubtful else ()
    return Verdict(problems, doubtful, mends, _load(plan, wanted, 0))


def _load(plan: Plan, wanted: Wanted, which: int) -> float:
    """Return the share of the device's time that the rates need. which: 0 predicted, 2 at most."""
    return wanted.vision_hz * plan.frame[which] + wanted.action_hz * plan.chunk[which]


def _late(plan: Plan, wanted: Wanted, which: int) -> tuple[str, ...]:
    problems = []
    load = _load(plan, wanted, which)
    if load > 1.0:
        frame, action = 1e3 * plan.frame[which], 1e3 * plan.chunk[which]
        problems.append(
            f"{wanted.vision_hz:g} frames of {frame:.3g} ms and {wanted.action_hz:g} chunks of "
            f"{action:.3g} ms a second are {load:.0%} of {plan.device.title}"
        )
    age = plan.latency[which]
    if wanted.max_age_s is not None and age > wanted.max_age_s:
        problems.append(
            f"a chunk is {1e3 * age:.3g} ms old when it arrives, but may be {1e3 * wanted.max_age_s:.3g}"
        )
    if not plan.fits:
        problems.append(f"{plan.memory.total / 1e9:.1f} GB do not fit into {plan.device.memory_gb:g}")
    return tuple(problems)


def _mends(plan: Plan, wanted: Wanted, which: int) -> tuple[str, ...]:
    work, options = plan.work, []
    tried = {}
    if isinstance(plan.sizes, PiConfig):
        for precision in ENGINE_PRECISIONS[1:]:
            if precision != work.precision:
                other = replace(work, precision=precision)
                tried[f"precision: {precision}"] = other
    if "denoise" in plan.stages and work.steps > 5:
        tried[f"steps: {work.steps // 2}"] = replace(work, steps=work.steps // 2)
    can_stagger = isinstance(plan.sizes, PiConfig) and plan.keep_exact and work.steps in SEATS
    if can_stagger and plan.shared is None and not _late(_again(plan, work, work.steps), wanted, which):
        options.append(f"staggered: {work.steps}")
    if work.views > 1:
        tried[f"{work.views - 1} instead of {work.views} views"] = replace(work, views=work.views - 1)
    for name, other in tried.items():
        try:
            better = _again(plan, other, plan.seats)
        except ValueError:
            continue
        if not _late(better, wanted, which):
            options.append(name)
    aged = wanted.max_age_s is not None and plan.latency[which] > wanted.max_age_s
    if not aged and plan.fits:
        options += _slower(plan, wanted)
    return tuple(options)


def _slower(plan: Plan, wanted: Wanted) -> list[str]:
    """Return the lower rate that can be promised of what is wanted at all, empty if no rate need be lower."""
    rates = {"vision": wanted.vision_hz, "action": wanted.action_hz}
    names = [name for name, rate_hz in rates.items() if rate_hz > 0.0]
    if not names:
        return []
    needed_s = {"vision": plan.frame[2], "action": plan.chunk[2]}
    current = [rates[name] for name in names]
    rate_hz = min((1.0 - SPARE) / sum(needed_s[name] for name in names), *current)
    return [f"{' and '.join(names)} at {rate_text(rate_hz)} Hz"] if rate_hz < max(current) else []


def rate_text(rate_hz: float) -> str:
    """A rate above 0 with a digit after the point, or with two digits if it is less than 0.1."""
    return f"{rate_hz:.1f}" if rate_hz >= 0.1 else f"{rate_hz:.2g}"


def _again(plan: Plan, work: Work, seats: int) -> Plan:
    """Return the plan of another load, with everything else as it was."""
    return make_plan(plan.sizes, plan.device, work, plan.slots, seats, plan.keep_exact, plan.text)
