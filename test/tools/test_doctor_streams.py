"""What is said of streams that were watched: rates, pauses, stamps, joints, and what fits together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.findings import ERROR, OK, WARNING
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sensing.arrivals import Arrival, Watched
from vla_accel_ros.tools.doctor.streams import judge

S = 1_000_000_000
NOW_NS = 1_800_000_000 * S


@pytest.fixture
def contract() -> Contract:
    return Contract.load(demo_contract())


def stream(
    rate_hz: float, age_s: float = 0.005, seconds: float = 3.0, start_ns: int = NOW_NS
) -> list[Arrival]:
    """So many messages a second, each so old when it arrives."""
    arrivals = []
    for index in range(int(rate_hz * seconds)):
        at_s = index / rate_hz
        now_ns = start_ns + round(at_s * S)
        arrivals.append(Arrival(now_ns - round(age_s * S), now_ns, 50.0 + at_s, 1000))
    return arrivals


def watched(contract: Contract, **changes) -> Watched:
    """Three seconds in which all was well, but for the changes: camera_front=, joint_states=, ..."""
    arrivals = {
        "camera/front": stream(30),
        "camera/wrist": stream(30),
        "joint_states": stream(100),
    }
    for name in list(changes):
        if name.replace("_", "/", 1) in arrivals or name in arrivals:
            arrivals[name if name in arrivals else name.replace("_", "/", 1)] = changes.pop(name)
    seen = Watched(
        53.0, arrivals, joints={joint.name: joint.lower for joint in contract.joints}, observations=80
    )
    return replace(seen, **changes)


def faults(contract: Contract, seen: Watched) -> list[tuple[str, str]]:
    return [(finding.level, str(finding)) for finding in judge(contract, seen) if finding.level != OK]


def test_a_robot_that_is_well(contract):
    found = judge(contract, watched(contract))
    assert [(finding.level, str(finding)) for finding in found] == [
        (OK, "camera/front: 30.0 Hz, 5.0 ms old on arrival"),
        (OK, "camera/wrist: 30.0 Hz, 5.0 ms old on arrival"),
        (OK, "joint_states: 100.0 Hz, 5.0 ms old on arrival"),
        (OK, "observation: 80 could be made of all streams"),
    ]


@pytest.mark.parametrize(
    ("arrivals", "level", "sentence"),
    [
        (
            [],
            ERROR,
            "camera/front: nothing arrived on camera/front/image_raw; look at the findings about its",
        ),
        (
            stream(20),
            WARNING,
            "camera/front: arrives at 20.0 Hz instead of 30; start the node with the Fast DDS",
        ),
        (
            stream(1.5),
            ERROR,
            "camera/front: paused for 1.00 s at 1.3 Hz, max_age_s allows 0.5, so the robot would",
        ),
        (
            stream(30, seconds=2.0),
            ERROR,
            "camera/front: paused for 1.03 s at 20.0 Hz, max_age_s allows 0.5",
        ),
        (stream(60), WARNING, "camera/front: arrives at 60.0 Hz, the contract says 30; fix rate_hz"),
        (
            [replace(arrival, stamp_ns=0) for arrival in stream(30)],
            ERROR,
            "camera/front: carries no time (its stamps are 0); have the driver stamp its messages",
        ),
        (
            stream(30, age_s=0.9),
            ERROR,
            "camera/front: is 0.900 s old on arrival, max_age_s allows 0.5; synchronise the clocks",
        ),
        (
            stream(30, age_s=0.3),
            WARNING,
            "camera/front: is 0.300 s old on arrival, more than half of max_age_s = 0.5; find the delay, or",
        ),
        (
            stream(30, age_s=-0.2),
            ERROR,
            "camera/front: has stamps 0.200 s ahead of this machine's clock; synchronise the clocks",
        ),
        (
            [replace(arrival, stamp_ns=arrival.stamp_ns - NOW_NS + S) for arrival in stream(30)],
            ERROR,
            "camera/front: has stamps of simulated time, 1799999999 s from the present; give",
        ),
        (
            [replace(arrival, now_ns=arrival.now_ns - NOW_NS + S) for arrival in stream(30)],
            ERROR,
            "camera/front: has stamps of real time, 1799999999 s from the present; give every",
        ),
        (
            [replace(a, stamp_ns=a.stamp_ns - (i % 2) * S // 4) for i, a in enumerate(stream(30))],
            WARNING,
            "camera/front: went back in time 45 times in 90 messages; is there a second publisher, or a bag",
        ),
    ],
)
def test_a_camera_that_is_not_well(contract, arrivals, level, sentence):
    found = faults(contract, watched(contract, camera_front=arrivals))
    assert found[0][0] == level and found[0][1].startswith(sentence)


def test_the_profile_is_no_mend_where_it_is_there(contract):
    (finding,) = [
        f for f in judge(contract, watched(contract, camera_front=stream(20)), False) if f.level != OK
    ]
    assert "instead of 30; look at its driver's rate" in str(finding) and "Fast DDS" not in str(finding)


def test_simulated_time_everywhere_is_well(contract):
    simulated = {name: stream(30, start_ns=5 * S) for name in ("camera_front", "camera_wrist")}
    assert faults(contract, watched(contract, **simulated, joint_states=stream(100, start_ns=5 * S))) == []


def test_what_the_ingest_refuses_is_told_once(contract):
    sentence = "camera front: encoding is '16UC1': have the driver publish rgb8"
    seen = watched(contract, camera_front=[], refused={"camera/front": [sentence] * 9}, observations=0)
    seen.waiting_for = "camera front has sent nothing yet"
    assert faults(contract, seen) == [
        (ERROR, "camera/front: camera front: encoding is '16UC1'; have the driver publish rgb8"),
        (ERROR, "observation: none could be made: camera front has sent nothing yet; fix the streams above"),
    ]


def test_joints_that_are_missing_or_beyond_their_limits(contract):
    joints = {joint.name: joint.lower for joint in contract.joints}
    joints["elbow"], joints["gripper"] = joints.pop("elbow_flex"), 40.0
    assert faults(contract, watched(contract, joints=joints)) == [
        (
            ERROR,
            "joint_states: no state of elbow_flex; fix the names of joints, or start the driver that "
            "publishes them; did you mean 'elbow'?; others there: elbow",
        ),
        (
            WARNING,
            "joint gripper: is at 40, its limits are 0 to 1; fix lower and upper: in rad or m, "
            "whatever unit says",
        ),
    ]
    strange = faults(contract, watched(contract, joints={"lidar": 1.0}))
    assert strange[0][1].endswith("them; others there: lidar")


def test_cameras_that_are_never_at_one_time(contract):
    tight = replace(contract, max_skew_s=0.01)
    shifted = [replace(a, stamp_ns=a.stamp_ns - S // 60) for a in stream(30)]
    assert faults(tight, watched(tight, camera_wrist=shifted)) == [
        (
            ERROR,
            "max_skew_s: camera/front and camera/wrist are 0.017 s apart, max_skew_s allows 0.01; trigger "
            "the cameras together, raise their rate, or raise max_skew_s",
        )
    ]


def test_a_camera_info_of_another_size(contract):
    seen = watched(
        contract, mismatches=["camera front: images are 4 x 4, its camera_info is of 8 x 8: calibrate"]
    )
    assert faults(contract, seen) == [
        (WARNING, "cameras: camera front: images are 4 x 4, its camera_info is of 8 x 8; calibrate")
    ]
