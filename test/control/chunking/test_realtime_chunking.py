"""What each chunk must agree with: the one being executed, for as long as measured, and when nothing; chunks
of a policy that was trained to be given what is executed meanwhile begin with exactly that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from builders import JOINTS, make_embodiment, make_observation
from engine_in_loop import MS, POLICIES, STEP_S, Robot, S, noise
from guiding import guidance_to

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.rtc import SCHEDULES, RealTimeChunking, RtcSettings
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Chunk


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("mask", SCHEDULES)
def test_a_chunk_agrees_with_the_one_before_for_the_measured_delay_and_the_masks_horizon(kind, mask):
    robot = Robot(kind, mask=mask, mask_horizon=2, delivery_s=0.03)
    first = robot.act(S, delay_ms=150)
    guided = robot.act(S + 200 * MS)
    with robot.engine.observe(make_observation((S + 200 * MS) % 97, stamp_ns=S + 200 * MS)) as prefix:
        # 150 ms of inference and 30 ms of delivery are two actions of 100 ms, and two more are masked.
        guidance = guidance_to(robot.engine, prefix, first, 2, 4, SCHEDULES[mask])
        expected = robot.engine.act(prefix, noise=noise(S + 200 * MS), guidance=guidance)
    np.testing.assert_array_equal(guided.actions, expected.actions)
    old, free = first.actions[2:], robot.free(S + 200 * MS)[:6]
    assert np.abs(guided.actions[:2] - old[:2]).mean() < 0.2 * np.abs(free[:2] - old[:2]).mean()
    assert robot.rtc.counts == {"first": 1, "guided": 1}


def test_a_newer_state_of_a_model_with_a_state_token_is_what_guidance_is_relative_to():
    robot, newer = Robot("pi0"), np.full(JOINTS, 0.25, np.float32)
    first = robot.act(S)
    with robot.engine.observe(make_observation(stamp_ns=S + 100 * MS)) as prefix:
        robot.now_ns = S + 250 * MS
        guided = robot.rtc.act(prefix, newer)
    assert np.abs(guided.actions[:2] - first.actions[1:3]).max() < 0.1


def test_the_first_chunk_is_free():
    robot = Robot()
    assert robot.rtc.delay_s is None
    assert robot.rtc.delay_steps(STEP_S) is None
    np.testing.assert_array_equal(robot.act(S).actions, robot.free(S))


def test_the_delay_is_measured_and_the_longest_of_the_last_few_counts():
    robot = Robot(window=3, delivery_s=0.05)
    delays = []
    for i, delay_ms in enumerate((240, 120, 310, 100, 100, 100)):
        robot.act(S + i * 100 * MS, delay_ms)
        delays.append(robot.rtc.delay_s)
    assert delays == pytest.approx([0.29, 0.29, 0.36, 0.36, 0.36, 0.15])
    assert robot.rtc.delay_steps(STEP_S) == 2
    assert robot.rtc.delay_steps(0.15) == 1, "a whole number of steps is not one more"


def test_another_instruction_is_answered_freely_and_at_once():
    robot = Robot()
    robot.act(S)
    chunk = robot.act(S + 100 * MS, instruction="reach the blue block")
    np.testing.assert_array_equal(chunk.actions, robot.free(S + 100 * MS, "reach the blue block"))
    robot.act(S + 200 * MS, instruction="reach the blue block")
    assert robot.rtc.counts == {"first": 1, "instruction": 1, "guided": 1}


@pytest.mark.parametrize(("joints", "step_dt_s"), [(JOINTS, 0.2), (4, STEP_S)])
def test_a_robot_that_is_described_anew_begins_freely(joints, step_dt_s):
    robot = Robot()
    robots, policy = robot.engine.runner.robots, cast(Policy, robot.engine.policy)
    robots.add("arm", Embodiment(policy, STEP_S))

    def act(at_ns, state):
        robot.now_ns = at_ns + 150 * MS
        seen = replace(make_observation(1, stamp_ns=at_ns), robot="arm", state=state)
        with robot.engine.observe(seen) as prefix:
            return robot.rtc.act(prefix)

    state = np.zeros(JOINTS, np.float32)
    act(S, state)
    act(S + 100 * MS, state)
    robots.add("arm", make_embodiment(policy, joints, step_dt_s))
    chunks = [act(S + number * 100 * MS, state[:joints]) for number in (2, 3)]
    assert robot.rtc.counts == {"first": 1, "guided": 2, "embodiment": 1}
    assert [chunk.agreement is None for chunk in chunks] == [True, False]
    assert chunks[1].actions.shape[1] == joints and chunks[1].step_dt_s == step_dt_s


def test_nothing_is_guided_while_the_robot_does_not_execute_it():
    robot = Robot()
    robot.act(S)
    robot.rtc.pause()
    for i in (1, 2):
        chunk = robot.act(S + i * 100 * MS)
        np.testing.assert_array_equal(chunk.actions, robot.free(S + i * 100 * MS))
    robot.rtc.resume()
    np.testing.assert_array_equal(robot.act(S + 300 * MS).actions, robot.free(S + 300 * MS))
    robot.act(S + 400 * MS)
    assert robot.rtc.counts == {"first": 2, "paused": 2, "guided": 1}


@pytest.mark.parametrize("what", ["forget", "pause"])
def test_a_chunk_that_was_unfinished_when_the_robot_was_stopped_guides_nothing(what):
    robot = Robot()
    robot.while_computing = getattr(robot.rtc, what)
    robot.act(S)
    robot.while_computing = lambda: None
    robot.rtc.resume()
    np.testing.assert_array_equal(robot.act(S + 100 * MS).actions, robot.free(S + 100 * MS))


def test_a_chunk_that_ends_before_the_next_takes_over_guides_nothing():
    robot = Robot(delivery_s=0.0)
    robot.act(S, delay_ms=200)
    last = robot.act(S + 600 * MS, delay_ms=200)  # six of eight actions are past, two until it comes
    assert robot.rtc.counts["guided"] == 1
    assert not np.array_equal(last.actions, robot.free(S + 600 * MS))
    chunk = robot.act(S + 1300 * MS, delay_ms=200)
    np.testing.assert_array_equal(chunk.actions, robot.free(S + 1300 * MS))
    assert robot.rtc.counts == {"first": 1, "guided": 1, "no_overlap": 1}


def test_a_clock_that_is_set_back_starts_anew():
    robot = Robot()
    robot.act(100 * S, delay_ms=500)
    back = robot.act(S, delay_ms=100)
    np.testing.assert_array_equal(back.actions, robot.free(S))
    assert robot.rtc.delay_s == pytest.approx(0.16), "the delays of before mean nothing now"
    robot.act(S + 100 * MS, delay_ms=-300)
    assert robot.rtc.delay_s is None
    robot.act(S + 200 * MS)
    assert robot.rtc.counts == {"first": 1, "clock_jumps": 1, "guided": 1, "no_overlap": 1}


def test_a_guided_chunk_continues_the_commanded_path_without_a_crossfade():
    """At the moment the new chunk takes over, what the buffer sends is where the old chunk would be."""
    robot, limits = Robot(), JointLimits(*np.tile([[-9.0], [9.0], [99.0], [1e6]], JOINTS))
    names = tuple(f"joint_{i}" for i in range(JOINTS))

    def seam(second: Chunk) -> float:
        buffer = TrajectoryBuffer(names, limits, "rtc", lead_s=0.015)
        buffer.reset(np.zeros(JOINTS))
        old = buffer.update(first, S + 150 * MS)
        new = buffer.update(second, S + 350 * MS)
        taken_over_ns = second.due_ns(2)
        return float(np.abs(new.sample(taken_over_ns)[0] - old.sample(taken_over_ns)[0]).max())

    first = robot.act(S)
    guided = robot.act(S + 200 * MS)
    free = Chunk(robot.free(S + 200 * MS), S + 200 * MS, STEP_S, 1, 9, guided.update_magnitudes)
    assert seam(guided) < 0.25 * seam(free)


def test_where_chunks_overtake_each_other_the_committed_actions_are_the_oldest_ones():
    """Images every step, chunks three steps later: the third agrees with what runs, not with a copy of it."""
    robot = Robot(delivery_s=0.0, mask="hard", mask_horizon=1)
    first = robot.act(S, delay_ms=300)
    second = robot.act(S + 100 * MS, delay_ms=300)
    third = robot.act(S + 200 * MS, delay_ms=300)
    runs = np.concatenate([first.actions[1:4], second.actions[3:]])
    with robot.engine.observe(make_observation((S + 200 * MS) % 97, stamp_ns=S + 200 * MS)) as prefix:
        guidance = guidance_to(robot.engine, prefix, replace(second, actions=runs), 3, 4, "ONES")
        expected = robot.engine.act(prefix, noise=noise(S + 200 * MS), guidance=guidance)
    np.testing.assert_array_equal(third.actions, expected.actions)


@pytest.mark.parametrize("jacobian", ["identity", "exact"])
@pytest.mark.parametrize("mask_horizon", [0, 3, 50])
def test_what_a_chunk_agreed_with_is_told_and_computes_it_again_to_the_bit(mask_horizon, jacobian):
    robot = Robot(mask_horizon=mask_horizon)
    robot.rtc = RealTimeChunking(
        robot.engine,
        robot.clock_ns,
        RtcSettings(mask="linear", mask_horizon=mask_horizon, jacobian=jacobian),
    )
    first = robot.act(S)
    assert first.agreement is None
    for at_ns in (S + 100 * MS, S + 230 * MS, S + 350 * MS):
        chunk = robot.act(at_ns)
        agreement = chunk.agreement
        assert (agreement.method, agreement.previous, agreement.jacobian) == (
            "guidance",
            first.request_id,
            jacobian,
        )
        assert (
            agreement.actions.dtype == np.float32
            and len(agreement.actions) <= agreement.end == agreement.delay + mask_horizon
        )
        # Another engine, on another day.
        engine = Engine(POLICIES["pi05"], steps=5, step_dt_s=STEP_S)
        with engine.observe(make_observation(at_ns % 97, stamp_ns=at_ns)) as prefix:
            repeated = engine.act(prefix, noise=noise(at_ns), agreement=agreement)
        assert repeated.actions.tobytes() == chunk.actions.tobytes()
        first = chunk


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mask": "soft"}, "mask is 'soft'.*hard.*linear.*exponential"),
        ({"mask_horizon": -1}, "mask_horizon is -1"),
        ({"delivery_s": float("nan")}, "delivery_s is nan"),
        ({"delivery_s": -0.1}, "delivery_s is -0.1"),
        ({"window": 0}, "window is 0"),
        ({"method": "learned"}, "method is 'learned'.*guidance.*trained"),
    ],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        RtcSettings(**settings)


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


def test_a_policy_that_was_not_trained_so_is_refused():
    engine = Engine(POLICIES["pi05"], steps=5, step_dt_s=STEP_S)
    with pytest.raises(ValueError, match=r"method = 'trained' .* guidance"):
        RealTimeChunking(engine, lambda: 0, RtcSettings(method="trained"))
