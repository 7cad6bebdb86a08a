"""The trajectory buffer takes short cuts; what comes out is, to the bit, what comes of the plain way.

The plain way builds a checked Trajectory at each step, samples every knot, and looks at each as if anything
could be in it. It is the buffer as it was before it had to follow 480 chunks a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vla_accel_ros.control.chunking.buffer import MODES, TrajectoryBuffer
from vla_accel_ros.control.chunking.crossing import Knots
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint, hardest, knot_velocities
from vla_accel_ros.types import Chunk

BEGIN_NS = 1_000_000_000_000


class PlainBuffer(TrajectoryBuffer):
    """The plain way."""

    def _join(self, commit_ns: int, times_ns: np.ndarray, actions: np.ndarray, blend_ns: int) -> Knots:
        position, velocity = self.reference(commit_ns)
        on_plan = self.plan is not None and commit_ns <= self._on_plan_until_ns
        old, _ = (self.plan if on_plan and self.plan is not None else self._commanded()).sample(times_ns)
        blend_ns = min(blend_ns, int(times_ns[-1]) - commit_ns)
        s = (times_ns - commit_ns) / blend_ns if blend_ns else np.ones(len(times_ns))
        weight = np.where(s < 1.0, s * s * (3.0 - 2.0 * s), 1.0)[:, None]
        positions = np.concatenate(
            [position[None], np.where(weight < 1.0, old + weight * (actions - old), actions)]
        )
        times = np.append(commit_ns, times_ns)
        slope = (positions[-1] - positions[-2]) / ((times[-1] - times[-2]) * 1e-9)
        velocities = knot_velocities(times, positions, first=velocity, last=slope)
        v, h = velocities[-2], (times[-1] - times[-2]) * 1e-9
        needed = hardest(positions[-2], v, positions[-1], np.zeros_like(v), h)
        fastest = np.clip(velocities[-1], -self.limits.velocity, self.limits.velocity)
        velocities[-1] = np.where(needed <= self.limits.acceleration, 0.0, fastest)
        end = TrajectoryPoint(int(times[-1]), positions[-1], velocities[-1])
        path = Trajectory(self.joints, times, positions, velocities)
        path = path.then(brake(self.joints, end, self.limits))
        return path.times_ns, path.positions, path.speeds

    def _kept(self, now_ns: int, commit_ns: int, after: Trajectory) -> Trajectory:
        old = self._commanded()
        inner = old.times_ns[(old.times_ns > now_ns) & (old.times_ns < commit_ns)]
        head = np.unique(np.concatenate([[now_ns], inner, [commit_ns]]))
        joined = Trajectory(self.joints, head, *old.sample(head)).then(after)
        return Trajectory(joined.joints, joined.times_ns, joined.positions, joined.velocities)


def buffers(rng: np.random.Generator) -> tuple[TrajectoryBuffer, PlainBuffer]:
    """Two alike."""
    d = int(rng.integers(1, 15))
    lower = rng.uniform(-3.0, 0.0, d)
    limits = JointLimits(
        lower, lower + rng.uniform(1.0, 5.0, d), rng.uniform(0.5, 4.0, d), rng.uniform(5.0, 40.0, d)
    )
    mode = MODES[rng.integers(len(MODES))]
    options: dict[str, Any] = {
        "blend_s": float(rng.choice((0.0, 0.05, 0.2, 1.0))),
        "lead_s": float(rng.choice((0.0, 0.005, 0.03, 0.1))),
        "execution_horizon": None if rng.random() < 0.7 else 5,
        "max_age_s": float(rng.choice((0.3, 0.8, np.inf))),
    }
    names = tuple(f"joint_{i}" for i in range(d))
    buffers = TrajectoryBuffer(names, limits, mode, **options), PlainBuffer(names, limits, mode, **options)
    for buffer in buffers:
        buffer.reset((limits.lower + limits.upper) / 2)
    return buffers


@pytest.mark.parametrize("seed", range(20))
def test_what_is_sent_is_that_of_the_plain_way_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fast, plain = buffers(rng)
    lower, upper, d = fast.limits.lower, fast.limits.upper, len(fast.joints)
    middle, half, speed = (lower + upper) / 2, (upper - lower) / 2, rng.uniform(0.5, 4.0, d)
    horizon, step_s = int(rng.choice((1, 5, 16, 50))), float(rng.choice((0.01, 1 / 30, 0.1)))
    rate_hz, noise = float(rng.choice((10.0, 60.0, 480.0))), float(rng.choice((0.0, 0.002, 0.02, 0.5)))
    now_ns, sent = BEGIN_NS, 0
    for request in range(60):
        now_ns += round(rng.uniform(0.5, 1.5) / rate_hz * 1e9)
        stamp_ns = now_ns - round(rng.uniform(0.02, 0.2) * 1e9)
        t = (stamp_ns - BEGIN_NS) * 1e-9 + np.arange(1, horizon + 1)[:, None] * step_s
        actions = middle + 0.4 * half * np.sin(t * speed) + noise * rng.normal(size=d)
        if rng.random() < 0.1:
            actions += rng.normal(size=actions.shape)
        chunk = Chunk(
            actions.astype(np.float32), stamp_ns, step_s, request, request, np.zeros(horizon, np.float32)
        )
        stops = rng.random() < 0.05
        fast_path, other = (b.stop(now_ns) if stops else b.update(chunk, now_ns) for b in (fast, plain))
        assert fast.counts == plain.counts and str(fast.report) == str(plain.report)
        assert (fast_path is None) == (other is None)
        if fast_path is None or other is None:
            continue
        sent += 1
        np.testing.assert_array_equal(fast_path.times_ns, other.times_ns)
        np.testing.assert_array_equal(fast_path.positions, other.positions)
        np.testing.assert_array_equal(fast_path.speeds, other.speeds)
        assert not fast_path.positions.flags.writeable and not fast_path.times_ns.flags.writeable
        later_ns = now_ns + round(rng.uniform(-0.02, 0.3) * 1e9)
        np.testing.assert_array_equal(fast.reference(later_ns), plain.reference(later_ns))
    assert sent
