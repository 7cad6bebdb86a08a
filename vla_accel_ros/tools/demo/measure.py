"""Definitions of the demo's figures, as functions of the recorded topics. No ROS, no clock.

Commanded motion is what the trajectories on the controller's topic say, each valid from its own stamp until
the next one's. Jerk is the RMS of the third difference of the arm joints at 30 Hz over dt^3, as in the
evaluation in simulated time (demo_policy/rollout.py). The age of a trajectory is the time from the capture of
its image to its own stamp; its image is that of the newest chunk received before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.control.trajectory import Trajectory

JERK_HZ = 30.0
TRACE_HZ = 120.0
KINDS = ("commanded", "measured")


@dataclass(frozen=True)
class Traces:
    """Joints over one episode at TRACE_HZ.

    joints: D names. times_ns: int64 [M]. commanded, measured: float64 [M, D], rad. handovers_ns: int64 [N],
    start of each trajectory.
    """

    joints: tuple[str, ...]
    times_ns: np.ndarray
    commanded: np.ndarray
    measured: np.ndarray
    handovers_ns: np.ndarray

    def jerk(self, which: str, joints: Sequence[str]) -> np.ndarray:
        """Return jerk [K, len(joints)] in rad/s^3 of "commanded" or "measured"; K is 0 below 0.1 s."""
        columns = [self.joints.index(joint) for joint in joints]
        at_30_hz = getattr(self, which)[:: round(TRACE_HZ / JERK_HZ), columns]
        return np.diff(at_30_hz, n=3, axis=0) * JERK_HZ**3


@dataclass(frozen=True)
class Squares:
    """The sum of the squares of some values, and their number."""

    total: float
    count: int

    @classmethod
    def of(cls, values: np.ndarray) -> Squares:
        return cls(float(np.sum(values**2)), values.size)


def rms(squares: Sequence[Squares]) -> float | None:
    """Return the root mean square of all values together; None without any."""
    count = sum(part.count for part in squares)
    return float(np.sqrt(sum(part.total for part in squares) / count)) if count else None


def growth_per_hour(samples: Sequence[dict[str, float]]) -> dict[str, float] | None:
    """Return by how much each figure of samples grows in an hour: a line by least squares over their second
    half, when caches are full. samples: figures at times `at_s`. None below ten of them."""
    if len(samples) < 10:
        return None
    samples = samples[len(samples) // 2 :]
    hours = [sample["at_s"] / 3600.0 for sample in samples]
    names = [name for name in samples[0] if name != "at_s"]
    slopes = {name: np.polyfit(hours, [sample[name] for sample in samples], 1)[0] for name in names}
    return {name: round(float(slope), 1) for name, slope in slopes.items()}


def percentiles(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return p50, p99 and n."""
    if not len(values):
        return {"p50": None, "p99": None, "n": 0}
    p50, p99 = np.percentile(values, (50, 99))
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2), "n": len(values)}


def traces(
    sent: Sequence[Trajectory], measured: Trajectory, joints: tuple[str, ...], until_ns: int
) -> Traces | None:
    """Return commanded and measured motion from the first command on.

    sent: all controllers' trajectories in order of publication. measured: the joint states as one trajectory
    (positions and velocities at their stamps). Returns None without a command or a measurement.
    """
    per_controller: dict[tuple[str, ...], list[Trajectory]] = {}
    for trajectory in sent:
        per_controller.setdefault(trajectory.joints, []).append(trajectory)
    if not per_controller or set().union(*per_controller) != set(joints):
        return None
    begin_ns = max(group[0].start_ns for group in per_controller.values())
    begin_ns = max(begin_ns, measured.start_ns)
    until_ns = min(until_ns, measured.end_ns)
    if until_ns <= begin_ns:
        return None
    times = np.arange(begin_ns, until_ns, round(1e9 / TRACE_HZ), dtype=np.int64)
    commanded = np.empty((len(times), len(joints)))
    for names, group in per_controller.items():
        commanded[:, [joints.index(name) for name in names]] = in_force(group, times)
    first = max(per_controller.values(), key=lambda group: len(group[0].joints))
    handovers = np.array([trajectory.start_ns for trajectory in first], dtype=np.int64)
    return Traces(joints, times, commanded, measured.select(joints).sample(times)[0], handovers)


def in_force(group: Sequence[Trajectory], times_ns: np.ndarray) -> np.ndarray:
    """Return the positions float64 [M, D] that one controller commands, where each trajectory replaces the
    last at its start. times_ns: int64 [M], not before the first start."""
    newest = np.searchsorted([trajectory.start_ns for trajectory in group], times_ns, side="right") - 1
    positions = np.empty((len(times_ns), len(group[0].joints)))
    for i in np.unique(newest):
        positions[newest == i] = group[i].sample(times_ns[newest == i])[0]
    return positions


def ages_ms(chunks: Sequence[tuple[int, int]], sent: Sequence[tuple[int, int]]) -> list[float]:
    """Return the age of each trajectory of one controller, in milliseconds.

    chunks: (received, image stamp). sent: (received, own stamp). All in nanoseconds and in order. A
    trajectory without a new chunk before it, such as a stop, has no age.
    """
    ages, i, answered = [], -1, -1
    for received, stamp in sent:
        while i + 1 < len(chunks) and chunks[i + 1][0] <= received:
            i += 1
        if i > answered:
            answered = i
            ages.append((stamp - chunks[i][1]) * 1e-6)
    return ages


@dataclass(frozen=True)
class Judged:
    """An answer about the image of stamp_ns, and whether it is true."""

    stamp_ns: int
    text: str
    right: bool


def judge(
    answers: Sequence[tuple[int, str, str]], truths: Sequence[tuple[int, str, str]]
) -> tuple[Judged, ...]:
    """Decide which answers are right.

    answers: (image stamp [ns], the model's instruction, text). truths: (stamp, instruction, true answer), in
    order. An answer is right if it was true just before or just after the image. Answers to an instruction
    that has just been replaced, or outside of the truths' time, are left out.
    """
    judged = []
    stamps = [stamp for stamp, _, _ in truths]
    for stamp, instruction, text in answers:
        i = int(np.searchsorted(stamps, stamp, side="right"))
        around = truths[i - 1 : i + 1] if 0 < i < len(truths) else []
        if around and all(told == instruction for _, told, _ in around):
            right = text.strip() in {answer for _, _, answer in around}
            judged.append(Judged(stamp, text.strip(), right))
    return tuple(judged)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate (Wilson score). Shapes: scalars; trials >= 1."""
    rate, z = successes / trials, 1.96
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)
