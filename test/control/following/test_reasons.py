"""Of the reasons for which a robot stands only the roots are told, and a number makes no new one."""

from __future__ import annotations

import pytest

from vla_accel_ros.control.following.reasons import roots, unnumbered
from vla_accel_ros.control.following.watchdog import ANYTHING, CLOCK_STANDS, MotionState, Safety, Watchdog

S = 1_000_000_000
LIMITS = {"camera/front": 0.5, "joint_states": 0.5, "chunk": 1.0}


@pytest.mark.parametrize(
    ("sentence", "other", "same"),
    [
        ("camera/front is 0.51 s old", "camera/front is 7.30 s old", True),
        ("elbow jumped by +0.40 rad", "elbow jumped by -1.2e-05 rad", True),
        ("no state of joint_1 for 3 s", "no state of joint_2 for 3 s", False),
        ("nobody listens to /arm1/commands", "nobody listens to /arm2/commands", False),
        ("controllers[0].topic is wrong", "controllers[1].topic is wrong", True),
    ],
)
def test_a_number_makes_no_other_reason_but_a_name_does(sentence, other, same):
    assert (unnumbered(sentence) == unnumbered(other)) == same


def test_what_follows_from_another_reason_is_no_root():
    unheard = "controllers[1].topic: nobody listens to /gripper"
    follows = {
        "beginning anew": ANYTHING,
        "gripper is 0.3 rad from where it was commanded to be": ("controllers[1].topic",),
        "elbow is 0.3 rad from where it was commanded to be": ("controllers[0].topic",),
        unheard: (),
    }
    assert roots(follows) == ["elbow is 0.3 rad from where it was commanded to be", unheard]
    assert roots({"beginning anew": ANYTHING}) == ["beginning anew"]


def reasons(watchdog: Watchdog, now_ns: int, **holds: tuple[str, ...]) -> list[str]:
    """The first words of the roots of a robot with these inputs and holds."""
    safety = Safety(watchdog)
    for hold, follows in holds.items():
        safety.hold(hold, follows)
    safety.step(now_ns, at_rest=True)
    assert safety.state is MotionState.HOLDING and len(safety.reasons) == len(safety.causes)
    return [reason.partition(" ")[0] for reason in safety.reasons]


def test_a_chunk_is_late_because_of_what_inference_waits_for():
    watchdog = Watchdog(LIMITS)
    for _ in range(2):  # a single report may be a stranger's
        watchdog.told({}, 0, {}, waiting_for="no frame of camera front yet")
    watchdog.seen("joint_states", 0)
    assert reasons(watchdog, 0) == ["camera/front"]
    watchdog.told({}, 0, {}, waiting_for="no state of joint elbow yet")
    assert reasons(watchdog, 0) == ["camera/front", "chunk"], "joints reach this node, not inference"
    watchdog.told({"camera/front": 0}, 0, {}, waiting_for="no state of joint elbow yet")
    assert reasons(watchdog, 0) == ["chunk"]
    assert reasons(watchdog, S) == ["inference", "joint_states"]


def test_the_instruction_that_is_missing_hides_no_other_cause():
    watchdog = Watchdog(LIMITS)
    for _ in range(2):
        watchdog.told({}, 0, {}, waiting_for="no instruction yet")
    assert reasons(watchdog, 0) == ["camera/front", "joint_states", "chunk"]


def test_time_that_stands_still_explains_every_late_input_and_no_hold():
    holds = {CLOCK_STANDS: (), "held": ()}
    assert reasons(Watchdog(LIMITS), 0, **holds) == ["ROS", "held"]
