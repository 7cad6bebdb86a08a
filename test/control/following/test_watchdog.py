"""A robot whose inputs go silent stops and holds; it goes on when they are back, but not over a hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.control.following.watchdog import Late, MotionState, Safety, Watchdog

S = 1_000_000_000
MS = S // 1000


def make_watchdog() -> Watchdog:
    return Watchdog({"camera/front": 0.25, "chunk": 0.5})


def all_seen(watchdog: Watchdog, stamp_ns: int) -> None:
    watchdog.seen("camera/front", stamp_ns)
    watchdog.seen("chunk", stamp_ns)


def make_running(now_ns: int = 0) -> Safety:
    safety = Safety(make_watchdog(), settle_s=0.0)
    all_seen(safety.watchdog, now_ns)
    change = safety.step(now_ns, at_rest=True)
    assert change is not None and change.after is MotionState.RUNNING
    return safety


def test_age_counts_from_the_stamp_and_the_limit_is_included():
    watchdog = make_watchdog()
    watchdog.seen("camera/front", 10 * S)
    watchdog.seen("chunk", 10 * S)
    assert watchdog.late(10 * S + 250 * MS) == []
    assert watchdog.late(10 * S + 251 * MS) == [Late("camera/front", 0.251, 0.25)]
    assert [stream.name for stream in watchdog.late(11 * S)] == ["camera/front", "chunk"]
    assert watchdog.age_s("chunk", 10 * S + 40 * MS) == pytest.approx(0.04)


def test_what_never_came_is_late():
    watchdog = make_watchdog()
    watchdog.seen("chunk", 0)
    assert [str(stream) for stream in watchdog.late(0)] == ["camera/front has not come yet"]
    assert watchdog.age_s("camera/front", 0) is None


def test_late_inputs_say_why_in_a_sentence():
    assert str(Late("chunk", 0.61, 0.5)) == "chunk is 0.61 s old, the limit is 0.50 s"
    assert str(Late("chunk", -9.0, 0.5)).startswith(
        "chunk is stamped 9.00 s in the future: the clock was set back"
    )


def make_told() -> Watchdog:
    watchdog = make_watchdog()
    watchdog.watch("inference", 0.6)
    for name in ("camera/front", "chunk", "inference"):
        watchdog.seen(name, 0)
    return watchdog


def test_a_silent_inference_is_the_cause_and_not_the_cameras_that_it_tells_of():
    watchdog = make_told()
    assert [str(stream) for stream in watchdog.causes(300 * MS)] == [
        "inference has said nothing for 0.30 s: is it running?"
    ]
    assert [stream.name for stream in watchdog.late(300 * MS)] == ["camera/front"]
    assert [stream.name for stream in watchdog.causes(900 * MS)] == ["inference"]


def test_a_silent_camera_is_the_cause_and_not_the_chunk_that_it_keeps_from_coming():
    watchdog = make_told()
    watchdog.seen("inference", 880 * MS)
    assert [stream.name for stream in watchdog.causes(900 * MS)] == ["camera/front"]
    watchdog.seen("camera/front", 880 * MS)
    watchdog.note("chunk", "inference waits: no instruction yet")
    assert [str(stream) for stream in watchdog.causes(900 * MS)] == [
        "chunk is 0.90 s old, the limit is 0.50 s; inference waits: no instruction yet"
    ]


def test_chunks_that_are_refused_are_the_cause_also_where_cameras_are_known_by_them():
    watchdog = make_watchdog()
    all_seen(watchdog, 0)
    watchdog.note("chunk", "chunks are refused: action 3 is nan")
    (cause,) = watchdog.causes(300 * MS)
    assert str(cause).startswith("chunk is 0.30 s old") and str(cause).endswith("refused: action 3 is nan")
    all_seen(watchdog, 290 * MS)
    assert watchdog.causes(300 * MS) == []


def test_pose_by_tf_is_known_by_what_inference_reports_and_else_by_chunks():
    watchdog = Watchdog({"tf/arm": 0.1, "chunk": 0.5})
    watchdog.seen_chunk(10 * S, 10 * S)
    assert not watchdog.late(10 * S)
    for stamp_ns in (10 * S, 10 * S + 50 * MS):
        watchdog.told({"tf/arm": 10 * S}, stamp_ns, {"tf/arm": "tf/arm: frame wrist is late"})
    watchdog.told({"tf/arm": 10 * S}, 10 * S + 150 * MS, {"tf/arm": "tf/arm: frame wrist is late"})
    (cause,) = watchdog.causes(10 * S + 150 * MS)
    assert cause.name == "tf/arm" and "wrist" in str(cause)
    watchdog.seen_chunk(10 * S + 140 * MS, 10 * S + 150 * MS)  # of a policy that did not wait for it
    assert watchdog.is_late("tf/arm", 10 * S + 150 * MS)


def test_a_cause_is_the_same_while_only_its_age_changes():
    safety = make_running()
    causes = set()
    for now in range(300, 600, 20):
        safety.step(now * MS, at_rest=True)
        causes.add(safety.causes)
    assert len(causes) == 2, "the camera, and later the chunk too"


def test_names_and_limits_are_checked():
    with pytest.raises(KeyError, match=r"camera/top .*camera/front, chunk"):
        make_watchdog().seen("camera/top", 0)
    with pytest.raises(ValueError, match="chunk is 0"):
        Watchdog({"chunk": 0})


def test_it_holds_until_every_input_has_come():
    safety = Safety(make_watchdog(), settle_s=0.0)
    assert safety.step(0, at_rest=True) is None and safety.state is MotionState.HOLDING
    assert safety.reasons == ("chunk has not come yet",), "who knows cameras by chunks only"
    safety.watchdog.seen("camera/front", 0)
    assert safety.step(0, at_rest=True) is None
    safety.watchdog.seen("chunk", 0)
    change = safety.step(0, at_rest=True)
    assert (change.before, change.after, change.reasons) == (MotionState.HOLDING, MotionState.RUNNING, ())


def test_a_silent_input_stops_it_once_then_it_holds_then_it_resumes():
    safety = make_running()
    safety.watchdog.seen("chunk", 300 * MS)
    change = safety.step(300 * MS, at_rest=False)
    assert change.after is MotionState.STOPPING
    assert change.reasons == ("camera/front is 0.30 s old, the limit is 0.25 s",)
    assert safety.step(310 * MS, at_rest=False) is None
    assert safety.step(400 * MS, at_rest=True).after is MotionState.HOLDING
    assert safety.step(410 * MS, at_rest=True) is None
    all_seen(safety.watchdog, 500 * MS)
    assert safety.step(500 * MS, at_rest=True).after is MotionState.RUNNING
    assert safety.reasons == ()


def test_it_comes_to_rest_before_it_runs_again():
    safety = make_running()
    safety.step(300 * MS, at_rest=False)
    all_seen(safety.watchdog, 310 * MS)
    assert safety.step(310 * MS, at_rest=False) is None and safety.state is MotionState.STOPPING
    assert safety.step(350 * MS, at_rest=True).after is MotionState.HOLDING
    assert safety.step(360 * MS, at_rest=True).after is MotionState.RUNNING


def test_inputs_must_stay_fresh_for_the_settling_time():
    safety = Safety(make_watchdog(), settle_s=0.3)
    all_seen(safety.watchdog, 0)
    assert safety.step(0, at_rest=True) is None
    assert safety.step(260 * MS, at_rest=True) is None, "the camera is late again: settling starts over"
    for now in (300 * MS, 400 * MS, 500 * MS):
        all_seen(safety.watchdog, now)
        assert safety.step(now, at_rest=True) is None
    all_seen(safety.watchdog, 600 * MS)
    assert safety.step(600 * MS, at_rest=True).after is MotionState.RUNNING


def test_an_operators_hold_stays_until_resumed():
    safety = make_running()
    safety.hold()
    assert safety.step(10 * MS, at_rest=False).reasons == ("held by the operator",)
    safety.step(100 * MS, at_rest=True)
    all_seen(safety.watchdog, 10 * S)
    assert safety.step(10 * S, at_rest=True) is None and safety.state is MotionState.HOLDING
    safety.resume()
    assert safety.step(10 * S, at_rest=True).after is MotionState.RUNNING


def test_resume_does_not_overrule_a_silent_input():
    safety = make_running()
    safety.hold()
    safety.step(10 * MS, at_rest=True)
    safety.step(20 * MS, at_rest=True)
    safety.resume()
    assert safety.step(S, at_rest=True) is None and safety.state is MotionState.HOLDING
    assert [reason.partition(" ")[0] for reason in safety.reasons] == ["chunk"]


def test_a_clock_set_back_stops_it_until_fresh_stamps_arrive():
    safety = make_running(100 * S)
    change = safety.step(5 * S, at_rest=False)
    assert change.after is MotionState.STOPPING and "in the future" in change.reasons[0]
    safety.step(5 * S + 100 * MS, at_rest=True)
    all_seen(safety.watchdog, 5 * S + 200 * MS)
    assert safety.step(5 * S + 200 * MS, at_rest=True).after is MotionState.RUNNING


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 5), st.booleans()), max_size=40))
def test_whatever_time_does_it_runs_only_on_fresh_inputs(events):
    safety = Safety(make_watchdog(), settle_s=0.1)
    for now, event, at_rest in events:
        if event == 0:
            all_seen(safety.watchdog, now)
        elif event == 1:
            safety.watchdog.seen("chunk", now)
        elif event == 2:
            safety.hold()
        elif event == 3:
            safety.resume()
        previous = safety.state
        change = safety.step(now, at_rest)
        assert (change is not None) == (safety.state is not previous)
        if safety.state is MotionState.RUNNING:
            assert safety.reasons == () and safety.watchdog.late(now) == []
        if previous is MotionState.RUNNING:
            assert safety.state is not MotionState.HOLDING
