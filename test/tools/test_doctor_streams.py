"""What is said of streams that were watched: rates, pauses, stamps, joints, and what fits together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vla_accel_ros.contract.checks.findings import ERROR, OK, WARNING
from vla_accel_ros.contract.contract import Contract
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
    arrivals = {"camera/front": stream(30), "camera/wrist": stream(30), "joint_states": stream(100)}
    for name in list(changes):
        if name.replace("_", "/", 1) in arrivals or name in arrivals:
            arrivals[name if name in arrivals else name.replace("_", "/", 1)] = changes.pop(name)
    joints = {joint.name: joint.lower for joint in contract.joints}
    return replace(Watched(53.0, arrivals, joints=joints, observations=80), **changes)


def faults(contract: Contract, streams: Watched, lacks_profile: bool = True) -> list[tuple[str, str]]:
    findings = judge(contract, streams, lacks_profile)
    return [(finding.level, str(finding)) for finding in findings if finding.level != OK]


def shifted(by_ns: int, field: str) -> list[Arrival]:
    return [replace(a, **{field: getattr(a, field) + by_ns}) for a in stream(30)]


def test_doctor_has_an_ok_for_each_stream_when_all_is_well(contract):
    findings = judge(contract, watched(contract))
    assert [(finding.level, finding.about) for finding in findings] == [
        (OK, name) for name in ("camera/front", "camera/wrist", "joint_states", "observation")
    ]
    assert (
        "30.0 Hz, 5.0 ms" in findings[0].fact and "100.0 Hz" in findings[2].fact and "80" in findings[3].fact
    )


@pytest.mark.parametrize(
    ("arrivals", "level", "fact", "fix"),
    [
        ([], ERROR, "camera/front/image_raw", "its topic"),
        (stream(20), WARNING, "20.0 Hz instead of 30", "Fast DDS"),
        (stream(1.5), ERROR, "paused for 1.00 s at 1.3 Hz, max_age_s allows 0.5", ""),
        (stream(30, seconds=2.0), ERROR, "paused for 1.03 s at 20.0 Hz", ""),
        (stream(60), WARNING, "60.0 Hz, the contract says 30", "rate_hz"),
        ([replace(arrival, stamp_ns=0) for arrival in stream(30)], ERROR, "stamps are 0", "stamp"),
        (stream(30, age_s=0.9), ERROR, "0.900 s old on arrival, max_age_s allows 0.5", "clocks"),
        (stream(30, age_s=0.3), WARNING, "0.300 s old on arrival, more than half", "delay"),
        (stream(30, age_s=-0.2), ERROR, "0.200 s ahead of", "clocks"),
        (shifted(S - NOW_NS, "stamp_ns"), ERROR, "simulated time, 1799999999 s", "use_sim_time"),
        (shifted(S - NOW_NS, "now_ns"), ERROR, "real time, 1799999999 s", "use_sim_time"),
        (
            [replace(a, stamp_ns=a.stamp_ns - (i % 2) * S // 4) for i, a in enumerate(stream(30))],
            WARNING,
            "45 times in 90 messages",
            "second publisher",
        ),
    ],
)
def test_doctor_says_what_is_wrong_with_a_camera(contract, arrivals, level, fact, fix):
    finding = next(f for f in judge(contract, watched(contract, camera_front=arrivals)) if f.level != OK)
    assert (finding.level, finding.about) == (level, "camera/front")
    assert fact in finding.fact and fix in finding.fix


def test_doctor_does_not_advise_the_profile_where_it_is_there(contract):
    ((_, text),) = faults(contract, watched(contract, camera_front=stream(20)), lacks_profile=False)
    assert "driver's rate" in text and "Fast DDS" not in text


def test_doctor_finds_simulated_time_everywhere_well(contract):
    simulated = {name: stream(30, start_ns=5 * S) for name in ("camera_front", "camera_wrist")}
    assert faults(contract, watched(contract, **simulated, joint_states=stream(100, start_ns=5 * S))) == []


def test_doctor_repeats_once_what_the_ingest_refuses(contract):
    refusal = "camera front: encoding is '16UC1': have the driver publish rgb8"
    streams = watched(contract, camera_front=[], refused={"camera/front": [refusal] * 9}, observations=0)
    streams.waiting_for = "camera front has sent nothing yet"
    (level, camera), (_, observation) = faults(contract, streams)
    assert level == ERROR and "'16UC1'" in camera and camera.endswith("; have the driver publish rgb8")
    assert observation.startswith("observation: ") and streams.waiting_for in observation


def test_doctor_names_joints_that_are_missing_or_beyond_their_limits(contract):
    joints = {joint.name: joint.lower for joint in contract.joints}
    joints["elbow"], joints["gripper"] = joints.pop("elbow_flex"), 40.0
    missing, beyond = faults(contract, watched(contract, joints=joints))
    assert missing[0] == ERROR and "elbow_flex" in missing[1] and "did you mean 'elbow'?" in missing[1]
    assert beyond[0] == WARNING and "joint gripper: is at 40, its limits are 0 to 1" in beyond[1]
    strange = faults(contract, watched(contract, joints={"lidar": 1.0}))
    assert strange[0][1].endswith("others there: lidar")


def test_doctor_names_cameras_that_are_never_at_one_time(contract):
    tight = replace(contract, max_skew_s=0.01)
    ((level, text),) = faults(tight, watched(tight, camera_wrist=shifted(-S // 60, "stamp_ns")))
    assert level == ERROR and text.startswith("max_skew_s: ")
    assert "camera/front and camera/wrist are 0.017 s apart, max_skew_s allows 0.01" in text


def test_doctor_warns_of_a_camera_info_of_another_size(contract):
    mismatch = "camera front: images are 4 x 4, its camera_info is of 8 x 8: calibrate"
    ((level, text),) = faults(contract, watched(contract, mismatches=[mismatch]))
    assert level == WARNING and text == f"cameras: {mismatch.replace(': cal', '; cal')}"
