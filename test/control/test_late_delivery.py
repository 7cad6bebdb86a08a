"""What joints are commanded when trajectories arrive late, by the sampler of a joint_trajectory_controller.

Chunks at 10 Hz of knots at 30 Hz, each off by 0.01 rad (normal, its own error); no limits smooth over what
the join does.
"""

from __future__ import annotations

import numpy as np
import pytest

from vla_accel_ros.control.chunking.buffer import Mode, TrajectoryBuffer
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.sim.controller import JointTrajectoryController
from vla_accel_ros.types import Chunk

S = 1_000_000_000
TICK = S // 500
JOINTS = ("pan", "lift")
WIDE = JointLimits(*np.array([[-3, -3], [3, 3], [50, 50], [1e5, 1e5]]))
SMOOTH = 50.0  # rad/s^2


def reference(t_s) -> np.ndarray:
    """Peaks of 1.57 rad/s and 4.9 rad/s^2."""
    return np.stack([0.5 * np.sin(np.pi * t_s), 0.5 * np.cos(np.pi * t_s)], axis=-1)


def hardest(mode: Mode, lead_s: float, delay_s: float, from_desired: bool = True, seed: int = 0) -> float:
    """Greatest |acceleration| at hand-overs of 4 s. Chunks come 0.1 s after their observation; those of
    `block` go on from where the arm stands, at 0.3 rad/s."""
    rng = np.random.default_rng(seed)
    buffer = TrajectoryBuffer(JOINTS, WIDE, mode, lead_s=lead_s, execution_horizon=8)
    controller = JointTrajectoryController(
        JOINTS, interpolate_from_desired_state=from_desired, update_s=TICK / S
    )
    position = reference(1.0)
    buffer.reset(position)
    controller.start(position)
    computing, travelling, path, near = [], [], [], []
    for tick in range(4 * 500):
        now_ns = S + tick * TICK
        if tick % 50 == 0:
            t = np.arange(1, 33) / 30
            ideal = position + 0.3 * t[:, None] if mode == "block" else reference(now_ns / S + t)
            actions = (ideal + rng.normal(0.0, 0.01, 2)).astype(np.float32)
            computing.append(
                (tick + 50, Chunk(actions, now_ns, 1 / 30, tick, tick, np.zeros(32, np.float32)))
            )
        while computing and computing[0][0] <= tick:
            sent = buffer.update(computing.pop(0)[1], now_ns)
            if sent is not None:
                travelling.append((now_ns + round(delay_s * S), sent))
        while travelling and travelling[0][0] <= now_ns:
            sent = travelling.pop(0)[1]
            controller.accept(sent, now_ns, None if from_desired else controller.desired(now_ns))
            near.append(tick)
        position = controller.desired(now_ns).position
        path.append(position)
    acceleration = np.abs(np.diff(path, n=2, axis=0)).max(axis=1) * (S / TICK) ** 2
    handed_over = np.zeros(len(acceleration), bool)
    for tick in near if mode == "block" else near[10:]:  # at first the arm has to catch up with the reference
        # From the arrival to the end of the crossing, which begins when the kept part ends.
        handed_over[tick - 2 : tick + round((2 * lead_s - delay_s + 0.15) * 500)] = True
    assert near
    return float(acceleration[handed_over].max())


@pytest.mark.parametrize("lead_s", [0.03, 0.15])
@pytest.mark.parametrize("mode", ["blend", "async", "rtc", "block"])
def test_a_delivery_within_twice_the_lead_is_smooth(mode, lead_s):
    for share, from_desired in (
        (0.0, True),
        (0.5, False),
        (1.0, True),
        (1.5, False),
        (2.0, True),
        (2.0, False),
    ):
        assert hardest(mode, lead_s, share * lead_s, from_desired) < SMOOTH


@pytest.mark.parametrize("mode", ["blend", "async", "rtc"])
def test_a_later_one_is_not(mode):
    assert hardest(mode, 0.03, 0.1) > 2 * SMOOTH
