"""The running stack is recorded, whatever becomes of the recorder; its chunks are computed again from bags.

Separate processes, real topics; the replay runs in this process.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from builders import make_checkpoint, make_config
from calling import change
from force_driver import QUANTITIES
from geometry_msgs.msg import WrenchStamped
from lifecycle_msgs.msg import Transition
from running import NodeProcess, until
from stack import CALM_SENSORS, Stack, set_going, wait_for_recorder

from vla_accel_msgs.msg import LanguageOutput
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools.replay.again import replay
from vla_accel_ros.tools.replay.moments import Moments
from vla_accel_ros.tools.replay.report import Result

CHUNKS = 15
QUESTIONS = ("put the red block", "follow the green pad")


def bags(folder: Path) -> list[Path]:
    """The bags of a folder, oldest first."""
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_ctime_ns)


def wait_for_chunks(operator: Operator) -> None:
    count = len(operator.chunks)
    operator.wait(lambda: len(operator.chunks) > count + CHUNKS, 180.0, f"{CHUNKS} chunks")


def recording(operator: Operator) -> dict[str, str]:
    """What the recorder says of itself."""
    line = operator.diagnostics.get("recorder: recording")
    return {} if line is None else {"message": line.message, **{v.key: v.value for v in line.values}}


def finished(operator: Operator) -> list[LanguageOutput]:
    """Whole answers."""
    return [answer for answer in operator.answers if answer.finished]


def holds_a_run(path: Path) -> bool:
    """Whether what is on the disk of a bag that is being written can be replayed."""
    types = Counter(entry.type.rpartition("/")[2] for entry in Bag(path).entries())
    return bool(types["Session"]) and types["ActionChunk"] > CHUNKS


def again(path: Path) -> tuple[Result, Moments, Bag]:
    bag = Bag(path)
    moments = Moments(bag)
    return replay(moments), moments, bag


def test_a_guided_run_is_replayed_to_the_bit_from_a_bag_and_from_what_a_killed_recorder_left(
    start, tmp_path, operator
):
    folder = tmp_path / "bags"
    Stack(start, tmp_path, mode="rtc")
    recorder: NodeProcess = start("recorder", autostart=True, record_dir=str(folder))
    wait_for_recorder(operator, "language_output", "loop_stats", "/diagnostics", "ground_truth")
    answers = len(operator.answers)
    set_going(operator)
    wait_for_chunks(operator)
    operator.wait(lambda: len(operator.answers) > answers, 180.0, "answer")
    operator.wait(lambda: recording(operator).get("message") == "recording", 90.0, "word of the recorder")
    assert change(operator, "recorder", Transition.TRANSITION_DEACTIVATE)
    recorder.wait_for_log("; 0 dropped")

    result, moments, bag = again(bags(folder)[0])
    assert result.equal, (result.different_chunks, result.different_texts)
    assert result.chunks >= CHUNKS and bag.finished
    assert moments.counts["incomplete"] <= moments.counts["observations"] // 4  # a busy machine loses images
    assert any(chunk.agreement for moment in Moments(bag) for chunk in moment.chunks)
    types = Counter(entry.type.rpartition("/")[2] for entry in bag.entries())
    expected = {"Image", "JointState", "String", "Observed", "ActionChunk", "JointTrajectory", "Session"}
    expected |= {"LanguageOutput", "LoopStats", "DiagnosticArray", "Motion", "GroundTruth"}
    assert types.keys() == expected
    assert bag.topics["/arm_controller/joint_trajectory"] == "trajectory_msgs/msg/JointTrajectory"
    parameters = [bag.decode(e).data for e in bag.entries() if e.topic == "/parameters"]
    assert len(parameters) == 3 and any('"steps": 2' in text for text in parameters)
    assert "transient_local" in bag.offered["/instruction"]

    assert change(operator, "recorder", Transition.TRANSITION_ACTIVATE)
    second = bags(folder)[1]
    until(lambda: holds_a_run(second), 180.0, "run on the disk")
    recorder.kill()
    killed, moments, bag = again(second)
    assert killed.equal and killed.chunks >= CHUNKS - 10 and not bag.finished
    assert moments.sessions.keys() == Moments(Bag(bags(folder)[0])).sessions.keys()
    wait_for_chunks(operator)  # nobody misses the recorder


def test_a_force_sensor_that_has_a_topic_is_recorded(start, tmp_path, operator):
    contract = tmp_path / "contract.yaml"
    wrench = {"topic": "wrist/wrench", "rate_hz": 100.0, "max_age_s": 0.1, **QUANTITIES}
    contract.write_text(f"{demo_contract().read_text()}\nforce: {json.dumps({'wrench': wrench})}\n")
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "bags"), contract=str(contract))
    driver = operator.node.create_publisher(WrenchStamped, "wrist/wrench", 10)
    operator.wait(driver.get_subscription_count, 180.0, "recorder")
    driver.publish(WrenchStamped())
    assert driver.wait_for_all_acked()
    (bag,) = bags(tmp_path / "bags")
    assert recorder.end() == 0
    assert [entry.topic for entry in Bag(bag).entries(("geometry_msgs/msg/WrenchStamped",))] == [
        "/wrist/wrench"
    ]


def test_frames_of_rings_are_recorded_as_the_images_that_the_policy_saw(start, tmp_path, operator):
    contract = tmp_path / "contract.yaml"
    contract.write_text(
        demo_contract().read_text().replace("/image_raw, image", "/frame, transport: ring, image")
    )
    model = make_checkpoint(tmp_path / "model")
    common = {"autostart": True, "contract": str(contract)}
    start("sim_robot", "left", ring=True, image_hz=0.0)
    recorder = start("recorder", "left", record_dir=str(tmp_path / "bags"), **common)
    start("inference", "left", model=str(model), steps=1, language_hz=0.0, **common)
    with Operator(operator.contract, namespace="left") as left:
        left.wait(lambda: left.measured, 90.0, "joint state")
        wait_for_recorder(left, image="frame")
        left.instruct("reach the green block")
        left.wait(lambda: len(left.chunks) > CHUNKS, 180.0, f"{CHUNKS} chunks")
    assert recorder.end() == 0
    result, _, bag = again(bags(tmp_path / "bags")[0])
    assert result.equal and result.chunks >= CHUNKS - 5
    assert bag.topics["/left/camera/front/frame/image"] == "sensor_msgs/msg/Image"
    assert "vla_accel_msgs/msg/FrameHandle" not in bag.topics.values()


@pytest.mark.parametrize("fast", [False, True])
def test_questions_asked_while_acting_are_in_the_bag_and_are_answered_again_letter_by_letter(
    start, tmp_path, operator, fast
):
    model = make_checkpoint(tmp_path / "model", make_config())
    start("sim_robot", **CALM_SENSORS)
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "bags"))
    start("inference", autostart=True, model=str(model), fast=fast, steps=1, vision_hz=10.0, language_hz=0.0)
    wait_for_recorder(operator, "language_output", "question")
    operator.instruct("reach the red block")
    wait_for_chunks(operator)
    for _ in range(2):
        count = len(finished(operator))
        for question in QUESTIONS:
            operator.ask(question)
        operator.wait(lambda: len(finished(operator)) == count + 2, 180.0, "both answers")  # noqa: B023
    wait_for_chunks(operator)
    assert recorder.end() == 0

    result, _, bag = again(bags(tmp_path / "bags")[0])
    assert result.equal, (result.different_chunks, result.different_texts)
    assert result.texts == 4 and result.chunks >= CHUNKS
    questions = [bag.decode(entry).data for entry in bag.entries() if entry.topic == "/question"]
    assert questions == [*QUESTIONS, *QUESTIONS]
    texts = [text for moment in Moments(bag) for text in moment.texts]
    assert sorted(texts) == sorted((answer.prompt, answer.text) for answer in finished(operator))
    assert {prompt for prompt, _ in texts} == set(QUESTIONS)


@pytest.fixture
def robot(start, operator) -> NodeProcess:
    """A robot alone."""
    return start("sim_robot", **CALM_SENSORS)


def test_a_disk_that_is_nearly_full_ends_the_recording_and_nothing_else(start, robot, tmp_path, operator):
    folder = tmp_path / "bags"
    recorder = start("recorder", autostart=True, record_dir=str(folder), keep_free_mb=1_000_000)
    log = recorder.wait_for_log("are kept free (keep_free_mb); the robot keeps running")
    assert log.count("recording has ended") == 1
    operator.wait(
        lambda: "recording has ended" in recording(operator).get("message", ""), 90.0, "diagnostics"
    )
    path = bags(folder)[0]
    until(lambda: (path / "metadata.yaml").exists(), 90.0, "the end of the bag")
    bag = Bag(path)
    assert list(bag.entries()) and bag.finished
    count = len(operator.joints)
    operator.wait(lambda: len(operator.joints) > count + 10, 90.0, "joint states")
    assert recorder.end() == 0


def test_a_folder_that_cannot_be_made_is_refused(start, tmp_path):
    (tmp_path / "file").write_text("")
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "file" / "bags"))
    assert "Not a directory" in recorder.wait_for_log("cannot activate: ")
