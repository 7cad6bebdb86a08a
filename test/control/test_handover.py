"""How smooth the joints between chunks are at the motor, against the ways a chunk is usually handed over.

The scene of the published comparison: a 0.5 Hz reference (peaks 1.57 rad/s, 4.9 rad/s^2), chunks at 10 Hz of
30 Hz knots, 100 ms from observation to chunk, 10 mrad of disagreement between chunks, a controller sampled at
500 Hz. The controller is a real one's sampler: a new trajectory replaces the old and starts from the
commanded or the measured state, as its parameter interpolate_from_desired_state says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from motion import S, make_chunk

from vla_accel_ros.control.buffer import TrajectoryBuffer
from vla_accel_ros.control.limits import JointLimits
from vla_accel_ros.control.trajectory import MotionState, Trajectory
from vla_accel_ros.engine.types import Chunk

JOINTS = ("pan", "lift")
LIMITS = JointLimits([-3, -3], [3, 3], [50, 50], [1e5, 1e5])
LATENCY, TRANSPORT, PERIOD, TICK = S // 10, 3_000_000, S // 10, S // 500
MOTOR_LAG_S = 0.02

Sender = Callable[[Chunk, int], Trajectory | None]


def reference(t_s) -> np.ndarray:
    return np.stack([0.5 * np.sin(np.pi * t_s), 0.5 * np.cos(np.pi * t_s)], axis=-1)


def observe(stamp_ns: int, number: int, rng: np.random.Generator) -> Chunk:
    t = stamp_ns / S + np.arange(1, 33) / 30
    return make_chunk(reference(t) + rng.choice([-0.005, 0.005], size=2), stamp_ns, 1 / 30, number)


def replace_whole(chunk: Chunk, now_ns: int) -> Trajectory:
    return Trajectory(JOINTS, [chunk.due_ns(i) for i in range(chunk.horizon)], chunk.actions)


def replace_future(chunk: Chunk, now_ns: int) -> Trajectory:
    ahead = [i for i in range(chunk.horizon) if chunk.due_ns(i) >= now_ns + S // 30]
    return Trajectory(JOINTS, [chunk.due_ns(i) for i in ahead], chunk.actions[ahead])


def make_buffer(mode) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(JOINTS, LIMITS, mode)
    buffer.reset(reference(0.0))
    return buffer


def peak_acceleration(send: Sender, from_desired: bool, seconds: int = 5) -> float:
    rng = np.random.default_rng(0)
    computing: list[tuple[int, Chunk]] = []
    travelling: list[tuple[int, Trajectory]] = []
    executing, start = None, None
    commanded, velocity = reference(0.0), np.zeros(2)
    measured, path = commanded.copy(), []
    for now in range(0, seconds * S, TICK):
        if now % PERIOD == 0:
            computing.append((now + LATENCY, observe(now, now // PERIOD, rng)))
        while computing and computing[0][0] <= now:
            sent = send(computing.pop(0)[1], now)
            if sent is not None:
                travelling.append((now + TRANSPORT, sent))
        while travelling and travelling[0][0] <= now:
            executing = travelling.pop(0)[1]
            start = MotionState(now, commanded if from_desired else measured, velocity)
        if executing is not None:
            commanded, velocity = executing.sample(now, start)
        measured = measured + (commanded - measured) * TICK / S / MOTOR_LAG_S
        path.append(commanded)
    settled = np.array(path)[S // TICK :]
    return float(np.abs(np.diff(settled, n=2, axis=0)).max() / (TICK / S) ** 2)


@pytest.mark.parametrize("from_desired", [True, False])
def test_blend_stays_near_the_reference_whatever_the_controller_starts_from(from_desired):
    assert peak_acceleration(make_buffer("blend").update, from_desired) <= 15.0


@pytest.mark.parametrize("from_desired", [True, False])
def test_async_is_continuous_too(from_desired):
    assert peak_acceleration(make_buffer("async").update, from_desired) <= 60.0


@pytest.mark.parametrize("send", [replace_whole, replace_future])
def test_replacing_chunks_jerks_the_motors(send):
    assert peak_acceleration(send, from_desired=True) > 500.0
    assert peak_acceleration(replace_future, from_desired=False) > 5000.0
