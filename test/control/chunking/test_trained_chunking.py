"""Chunks of a policy that was trained to be given what is executed meanwhile begin with exactly that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import make_observation
from engine_in_loop import MS, POLICIES, STEP_S, Robot, S, noise

from vla_accel_ros.control.chunking.rtc import RealTimeChunking, RtcSettings
from vla_accel_ros.engine.actors.guidance import guidance_to
from vla_accel_ros.engine.engine import Engine


def trained(kind: str = "pi05", **settings: Any) -> Robot:
    """A robot whose policy was trained for delays of up to 3 actions."""
    return Robot(kind, trained_delay=3, **{"delivery_s": 0.0, "method": "trained", **settings})


@pytest.mark.parametrize("kind", POLICIES)
def test_a_chunk_begins_with_what_is_executed_until_it_comes(kind):
    robot = trained(kind)
    first = robot.act(S)
    np.testing.assert_array_equal(first.actions, robot.free(S))
    second = robot.act(S + 300 * MS)
    np.testing.assert_array_equal(second.actions[:2], first.actions[3:5])
    assert not np.array_equal(second.actions[2:], robot.free(S + 300 * MS)[2:])
    assert robot.rtc.counts == {"first": 1, "trained": 1}


def test_between_two_actions_it_begins_with_what_is_between_them():
    robot = trained()
    first = robot.act(S)
    second = robot.act(S + 250 * MS)
    np.testing.assert_allclose(second.actions[0], (first.actions[2] + first.actions[3]) / 2, atol=1e-6)


def test_a_delay_beyond_the_training_is_guided():
    robot = trained(mask_horizon=2)
    first = robot.act(S, delay_ms=350)
    second = robot.act(S + 100 * MS)
    with robot.engine.observe(make_observation((S + 100 * MS) % 97, stamp_ns=S + 100 * MS)) as prefix:
        guidance = guidance_to(robot.engine, prefix, first, 4, 6, "EXP")
        expected = robot.engine.act(prefix, noise=noise(S + 100 * MS), guidance=guidance)
    np.testing.assert_array_equal(second.actions, expected.actions)
    assert robot.rtc.counts == {"first": 1, "guided": 1}


def test_a_chunk_without_a_delay_still_continues_the_motion():
    """Its first action is one step away: what was to be executed then, it must not contradict."""
    robot = trained()
    first = robot.act(S, delay_ms=0)
    second = robot.act(S + 100 * MS, delay_ms=0)
    np.testing.assert_array_equal(second.actions[0], first.actions[1])


def test_chunks_of_a_paused_robot_are_free():
    robot = trained()
    robot.act(S)
    robot.rtc.pause()
    np.testing.assert_array_equal(robot.act(S + 100 * MS).actions, robot.free(S + 100 * MS))


def test_a_policy_that_was_not_trained_so_is_refused():
    engine = Engine(POLICIES["pi05"], steps=5, step_dt_s=STEP_S)
    with pytest.raises(ValueError, match=r"method = 'trained' .* guidance"):
        RealTimeChunking(engine, lambda: 0, RtcSettings(method="trained"))
    with pytest.raises(ValueError, match=r"method = 'learned' .*guidance .*trained"):
        RtcSettings(method="learned")  # type: ignore[arg-type]
