"""Chunks of a policy that was trained to be given what is executed meanwhile begin with exactly that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import JOINTS, make_observation, make_policy

from vla_accel_ros.control.rtc import RealTimeChunking, RtcSettings
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.types import Chunk

S = 1_000_000_000
MS = S // 1000
STEP_S = 0.1
POLICIES = {kind: make_policy(kind, delta_mask=np.ones(JOINTS, bool)) for kind in ("pi0", "pi05")}


class Robot:
    """An engine in the loop, whose policy was trained for delays of up to 3 actions."""

    def __init__(self, kind: str = "pi05", **settings):
        policy = replace(POLICIES[kind], trained_delay=3)
        self.engine = Engine(policy, steps=5, step_dt_s=STEP_S)
        self.now_ns = 0
        settings = {"delivery_s": 0.0, "method": "trained", **settings}
        self.rtc = RealTimeChunking(self.engine, lambda: self.now_ns, RtcSettings(**settings))

    def act(self, at_ns: int, delay_ms: int = 150) -> Chunk:
        self.now_ns = at_ns + delay_ms * MS
        with self.engine.observe(make_observation(at_ns % 97, stamp_ns=at_ns)) as prefix:
            return self.rtc.act(prefix, noise=noise(at_ns))

    def free(self, at_ns: int) -> Chunk:
        """The same chunk when it agrees with nothing."""
        with self.engine.observe(make_observation(at_ns % 97, stamp_ns=at_ns)) as prefix:
            return self.engine.act(prefix, noise=noise(at_ns))


def noise(at_ns: int) -> np.ndarray:
    return np.random.default_rng(at_ns).standard_normal((8, 8), dtype=np.float32)


@pytest.mark.parametrize("kind", POLICIES)
def test_a_chunk_begins_with_what_is_executed_until_it_comes(kind):
    robot = Robot(kind)
    first = robot.act(S)
    np.testing.assert_array_equal(first.actions, robot.free(S).actions)
    second = robot.act(S + 300 * MS)
    np.testing.assert_array_equal(second.actions[:2], first.actions[3:5])
    assert not np.array_equal(second.actions[2:], robot.free(S + 300 * MS).actions[2:])
    assert robot.rtc.counts == {"first": 1, "trained": 1}


def test_between_two_actions_it_begins_with_what_is_between_them():
    robot = Robot()
    first = robot.act(S)
    second = robot.act(S + 250 * MS)
    np.testing.assert_allclose(second.actions[0], (first.actions[2] + first.actions[3]) / 2, atol=1e-6)


def test_a_delay_beyond_the_training_is_guided():
    robot = Robot(mask_horizon=2)
    first = robot.act(S, delay_ms=350)
    second = robot.act(S + 100 * MS)
    with robot.engine.observe(make_observation((S + 100 * MS) % 97, stamp_ns=S + 100 * MS)) as prefix:
        guidance = robot.engine.guidance(prefix, first, 4, 6, "EXP")
        expected = robot.engine.act(prefix, noise=noise(S + 100 * MS), guidance=guidance)
    np.testing.assert_array_equal(second.actions, expected.actions)
    assert robot.rtc.counts == {"first": 1, "guided": 1}


def test_a_chunk_without_a_delay_still_continues_the_motion():
    """Its first action is one step away: what was to be executed then, it must not contradict."""
    robot = Robot()
    first = robot.act(S, delay_ms=0)
    second = robot.act(S + 100 * MS, delay_ms=0)
    np.testing.assert_array_equal(second.actions[0], first.actions[1])


def test_chunks_of_a_paused_robot_are_free():
    robot = Robot()
    robot.act(S)
    robot.rtc.pause()
    np.testing.assert_array_equal(robot.act(S + 100 * MS).actions, robot.free(S + 100 * MS).actions)


def test_a_policy_that_was_not_trained_so_is_refused():
    engine = Engine(POLICIES["pi05"], steps=5, step_dt_s=STEP_S)
    with pytest.raises(ValueError, match=r"method = 'trained' needs a policy .* choose guidance"):
        RealTimeChunking(engine, lambda: 0, RtcSettings(method="trained"))
    with pytest.raises(ValueError, match="method = 'learned' is unknown: choose guidance or trained"):
        RtcSettings(method="learned")
