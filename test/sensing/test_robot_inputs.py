"""What inference knows and says of its inputs: stamps of all streams, what chunks wait for, their pace, and
what is not like in training."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import cv2
import numpy as np
import pytest
from streams import MS, TASK, Robot, S, make_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.pace import ChunkPace
from vla_accel_ros.control.state_file import LARGEST, Restored
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.inputs import Instruction, RobotInputs
from vla_accel_ros.sensing.trained import TrainedImage, TrainedInputs, TrainedState

NOW = 100 * S
BUSY = "this host is busy"


class ActingRobot(Robot):
    """A robot's inputs, with its drivers. max_age_s: of a chunk's observation."""

    def __init__(self, max_age_s: float = 1.2, trained: TrainedInputs | None = None) -> None:
        contract = make_contract()
        super().__init__(replace(contract, chunk=replace(contract.chunk, max_age_s=max_age_s)))
        pace = ChunkPace(max_age_s, 30.0)
        self.inputs = RobotInputs(self.contract, self.ingest, pace=pace, trained=trained)

    def send(self, *stamps_ns: int, cameras: tuple[str, ...] = ("front", "wrist")) -> None:
        """A frame of the cameras, and joints, for each stamp in this order."""
        for stamp_ns in stamps_ns:
            self.ingest.joints(self.contract.joint_names, [0.1] * 6, stamp_ns, stamp_ns)
            for camera in cameras:
                self.frame(camera, stamp_ns)

    def act(self, now_ns: int, chunk_s: float) -> None:
        """Observe, and make a chunk of it in this time."""
        observation = self.inputs.observe(now_ns)
        assert observation is not None
        self.inputs.made(observation.stamp_ns, now_ns + round(chunk_s * S))

    def reasons(self, now_ns: int) -> dict[str, str]:
        return self.inputs.reasons(self.inputs.report(now_ns))


def test_report_has_the_stamps_of_all_streams_and_the_missing_instruction_before_one_comes() -> None:
    robot = ActingRobot()
    robot.send(NOW)
    assert robot.inputs.observe(NOW) is None
    report = robot.inputs.report(NOW)
    assert report.stamps_ns == dict.fromkeys(("camera/front", "camera/wrist", "joint_states"), NOW)
    assert "no instruction yet" in report.waiting_for and report.problems == {}
    assert list(robot.inputs.reasons(report).values()) == [report.waiting_for]
    robot.inputs.instruct(TASK)
    robot.act(NOW, 0.1)
    assert robot.reasons(NOW + S // 10) == {}
    assert robot.inputs.report(NOW).waiting_for == "" and robot.inputs.newest_chunk_ns == NOW


@pytest.mark.parametrize("blank", ["", " \n"])
def test_instruction_of_blanks_is_none(blank: str) -> None:
    robot = ActingRobot()
    robot.inputs.instruct(blank)
    robot.send(NOW)
    assert robot.inputs.observe(NOW) is None and "no instruction" in robot.ingest.waiting_for


def test_refused_instruction_ends_the_one_before_and_says_why() -> None:
    robot = ActingRobot()
    robot.inputs.instruct(TASK)
    robot.inputs.instruct("", "it has 900 tokens")
    assert robot.inputs.report(NOW).waiting_for == "it has 900 tokens"
    robot.send(NOW)
    assert robot.inputs.observe(NOW) is None
    assert robot.inputs.report(NOW).waiting_for == "it has 900 tokens"
    assert robot.inputs.instruction.fields == {"instruction": ""}


def test_reasons_name_the_useless_camera_the_missing_joint_and_what_is_waited_for() -> None:
    robot = ActingRobot()
    robot.inputs.instruct(TASK)
    missing = robot.contract.joint_names[-1]
    robot.ingest.joints(robot.contract.joint_names[:-1], [0.1] * 5, NOW, NOW)
    message = image_message(NOW, "front", np.zeros((4, 5, 3), np.uint8))
    robot.ingest.image("front", bytes(message), NOW)
    with pytest.raises(ValueError):
        robot.ingest.image("wrist", bytes(message).replace(b"rgb8\0", b"16UC\0"), NOW)
    assert robot.inputs.observe(NOW) is None
    report = robot.inputs.report(NOW)
    assert set(report.stamps_ns) == {"camera/front"}
    assert report.problems["camera/wrist"].startswith("camera wrist: ")
    assert "16UC" in report.problems["camera/wrist"] and missing in report.problems["joint_states"]
    wait, joints = robot.inputs.reasons(report).values()
    assert "wrist" in wait and "16UC" in wait, "what is waited for has its cause with it"
    assert joints == report.problems["joint_states"]


def test_error_that_prevents_chunks_is_reported_until_a_chunk_is_made() -> None:
    robot = ActingRobot()
    robot.inputs.instruct(TASK)
    robot.send(NOW)
    robot.inputs.observe(NOW)
    robot.inputs.fail("the action loop fails: no memory")
    assert robot.inputs.report(NOW).waiting_for == "the action loop fails: no memory"
    assert robot.inputs.errors == 1
    robot.inputs.made(NOW, NOW + MS)
    assert robot.inputs.report(NOW).waiting_for == ""


def test_cameras_are_alive_and_the_pace_is_named_while_a_slow_model_computes() -> None:
    robot = ActingRobot(max_age_s=0.3)
    robot.inputs.instruct(TASK)
    for chunk in range(4):
        robot.send(NOW + chunk * S // 4)
        robot.act(NOW + chunk * S // 4, 0.25)
    now_ns = NOW + S
    robot.send(now_ns)
    report = robot.inputs.report(now_ns)
    assert report.stamps_ns["camera/front"] == now_ns and robot.inputs.newest_chunk_ns == NOW + 3 * S // 4
    assert robot.inputs.is_slow(now_ns)
    assert report.chunks_per_s == pytest.approx(4.0) and report.chunks_per_s_needed == pytest.approx(20.0)
    assert "4.0 chunks/s" in report.slow and "20.0" in report.slow
    robot.inputs.clear()
    assert not robot.inputs.is_slow(now_ns) and robot.inputs.report(now_ns).stamps_ns == {}


def test_host_is_blamed_and_not_the_model_when_others_keep_it_busy() -> None:
    robot = ActingRobot(max_age_s=0.3)
    robot.inputs.instruct(TASK)
    robot.send(NOW)
    robot.act(NOW, 0.4)
    assert robot.inputs.report(NOW + S).slow
    report = robot.inputs.report(NOW + S, BUSY)
    assert report.busy == BUSY and report.slow == ""


@pytest.mark.parametrize("seed", range(3))
def test_no_set_of_frames_is_observed_twice_or_after_a_newer_one_when_they_come_late_and_shuffled(
    seed: int,
) -> None:
    robot, chance = ActingRobot(), random.Random(seed)
    robot.inputs.instruct(TASK)
    sent, observed = list[int](), list[tuple[int, ...]]()
    for number in range(60):
        now_ns = NOW + number * 30 * MS
        sent.append(now_ns)
        for stamp_ns in (now_ns, *chance.choices(sent[-12:], k=3), now_ns, now_ns):
            for camera in chance.sample(("front", "wrist"), 2):
                robot.send(stamp_ns, cameras=(camera,))
                observation = robot.inputs.observe(now_ns)
                if observation is not None and observation.stamps_ns is not None:
                    observed.append(tuple(observation.stamps_ns.values()))
    assert len(observed) >= 60 and len(set(observed)) == len(observed)
    assert (np.diff(observed, axis=0) >= 0).all()


def test_inputs_unlike_training_are_named_before_there_is_an_instruction() -> None:
    contract = make_contract()
    low = np.full(6, -1.0)
    low[2] = 2.5
    state = TrainedState(low, low + 2.0, np.full(6, 0.1), np.zeros(6, bool))
    robot = ActingRobot(trained=TrainedInputs(contract, state))
    robot.inputs.compare()
    assert robot.inputs.unlike == []
    robot.send(NOW)
    robot.inputs.compare()
    sentences = "\n".join(robot.inputs.unlike)
    assert f"joint {contract.joint_names[2]} is at 0.1" in sentences and "2.5 to 4.5" in sentences
    assert "camera front" in sentences and "camera wrist" in sentences and len(robot.inputs.unlike) == 3


def test_stream_states_count_what_is_lost_once() -> None:
    robot = ActingRobot()
    for number in range(30):
        robot.send(NOW + number * S // 30)
    (front, wrist, joints), now_ns = robot.inputs.stream_states(NOW + S), NOW + S
    assert (front.name, wrist.name, joints.name) == ("front", "wrist", "joint_states")
    assert front.problem == "" and front.values["lost"] == 0 and "lost" not in joints.values
    assert front.values["rate [Hz]"] == pytest.approx(30.0, rel=0.1) and front.values["refused"] == 0
    leases = [robot.ingest._frames.newest("front")]
    for number in range(5):
        robot.send(now_ns + number, cameras=("front",))
        leases.append(robot.ingest._frames.newest("front"))
    lost = robot.inputs.stream_states(now_ns)[0]
    count = lost.values["lost"]
    assert isinstance(count, int) and count > 0 and f"{count} frames" in lost.problem
    repeated = robot.inputs.stream_states(now_ns)[0]
    assert repeated.problem == "" and repeated.values["lost"] == count
    for lease in leases:
        assert lease is not None
        lease.release()


def test_slow_streams_are_warned_of_and_silent_ones_are_not() -> None:
    robot = ActingRobot()
    for number in range(4):
        robot.send(NOW + number * S, cameras=("front",))
    warnings = robot.inputs.slow_streams(NOW + 3 * S)
    assert len(warnings) == 2 and "camera front" in warnings[0] and "joint_states" in warnings[1]


def test_mismatch_of_camera_info_is_returned_once() -> None:
    robot = ActingRobot()
    robot.send(NOW)
    assert "480 x 640" in robot.inputs.info("front", 480, 640)
    assert robot.inputs.info("front", 480, 640) == "" == robot.inputs.info("wrist", 4, 6)


@pytest.mark.parametrize(
    ("clean", "keep", "text"),
    [(False, True, TASK), (False, False, ""), (True, True, "")],
    ids=["after a crash", "where it is to forget", "after a clean end"],
)
def test_instruction_is_restored_only_after_a_crash_and_a_lost_one_is_named(
    clean: bool, keep: bool, text: str
) -> None:
    instruction = Instruction()
    words = instruction.restore(Restored({"instruction": TASK}, clean), keep)
    assert repr(TASK) in words and instruction.text == text
    robot = ActingRobot()
    inputs = RobotInputs(robot.contract, robot.ingest, instruction)
    robot.send(NOW)
    assert (inputs.observe(NOW) is not None) == bool(text)
    assert text or robot.ingest.waiting_for == words


def test_instruction_that_cannot_be_read_is_said_to_be_unknown() -> None:
    instruction = Instruction()
    assert "no disk" in instruction.restore(Restored(clean=False, problem="no disk"), keep=True)
    assert instruction.text == "" and "no disk" in instruction.missing
    assert Instruction().restore(Restored({"instruction": 7}, clean=False), keep=True) == ""
    assert Instruction().restore(Restored(), keep=True) == ""


def test_instruction_too_long_for_the_state_file_is_not_kept() -> None:
    robot = ActingRobot()
    robot.inputs.instruct("x" * LARGEST)
    assert robot.inputs.instruction.fields == {"instruction": ""}
    robot.inputs.instruct(TASK)
    assert robot.inputs.instruction.fields == {"instruction": TASK}


COLOURS = TrainedImage(np.array([120.0, 110.0, 90.0]), np.array([55.0, 50.0, 60.0]))


def scene(mean: float = 110.0, contrast: float = 50.0, colour: float = 30.0) -> np.ndarray:
    """A picture of 480 x 640 with that mean brightness and contrast, and colours that differ by that much."""
    rng = np.random.default_rng(0)
    light = cv2.resize(rng.normal(0, 1, (12, 16)), (640, 480), interpolation=cv2.INTER_CUBIC)
    light = mean + contrast * (light - light.mean()) / light.std()
    tint = colour * np.array([1.0, 0.0, -1.0])
    return np.clip(light[..., None] + tint, 0, 255).astype(np.uint8)


def told_mean(sentence: str) -> float:
    return float(sentence.partition("mean ")[2].partition(" ")[0])


def inputs(contract: Contract, **images: TrainedImage) -> TrainedInputs:
    """Joints moved -1 to 1 in training, but for the last, which stood at 0.5."""
    count = len(contract.joints)
    low, high, still = -np.ones(count), np.ones(count), np.arange(count) == count - 1
    low[-1] = high[-1] = 0.5
    return TrainedInputs(contract, TrainedState(low, high, 0.1 * (high - low), still), images)


def test_joints_as_in_training_and_a_little_beyond_are_nothing_to_say(contract):
    for position in (-1.1, 0.0, 1.1):
        assert inputs(contract).joints(np.array([position] * 5 + [0.5])) == []


def test_a_joint_beyond_its_training_is_named_with_the_numbers(contract):
    (warning,) = inputs(contract).joints(np.array([0.0, 0.0, -57.3, 0.0, 0.0, 0.5]))
    assert contract.joint_names[2] in warning and "-57.3" in warning and "-1 to 1" in warning


def test_a_joint_that_did_not_move_in_training_is_told_at_load_and_when_it_is_elsewhere(contract):
    trained, name = inputs(contract), contract.joint_names[-1]
    (warning,) = trained.still
    assert name in warning and "0.5" in warning
    assert trained.joints(np.array([0.0] * 5 + [0.505])) == []
    (warning,) = trained.joints(np.array([0.0] * 5 + [0.7]))
    assert name in warning and "0.7" in warning and "0.5" in warning


def test_a_continuous_joint_is_as_in_training_in_any_turn(contract):
    first, *further = contract.joints
    turning = replace(contract, joints=(replace(first, continuous=True, unit="deg", gain=None), *further))
    trained = inputs(turning)
    assert trained.joints(np.array([360.5, 0.0, 0.0, 0.0, 0.0, 0.5])) == []
    (warning,) = trained.joints(np.array([180.0, 0.0, 0.0, 0.0, 0.0, 0.5]))
    assert first.name in warning


def test_without_statistics_joints_are_not_judged(contract):
    trained = TrainedInputs(contract, None, {})
    assert trained.still == [] and trained.joints(np.full(6, 1e6)) == []


@pytest.mark.parametrize("images", [{}, {"base": COLOURS}])
def test_a_picture_as_in_training_is_nothing_to_say(contract, images):
    assert inputs(contract, **images).picture("front", "base", scene()) == []


@pytest.mark.parametrize(("mean", "contrast"), [(3.0, 2.0), (252.0, 2.0), (110.0, 1.0)])
def test_a_picture_that_no_training_has_is_told_with_numbers(contract, mean, contrast):
    picture = scene(mean, contrast, colour=0.0)
    (warning,) = inputs(contract).picture("front", "base", picture)
    assert "camera front" in warning and told_mean(warning) == pytest.approx(picture.mean(), abs=1.5)


@pytest.mark.parametrize(("mean", "contrast"), [(40.0, 20.0), (200.0, 25.0), (110.0, 12.0)])
def test_a_picture_far_from_the_cameras_statistics_is_told_with_both(contract, mean, contrast):
    picture = scene(mean, contrast, colour=10.0)
    assert inputs(contract).picture("front", "base", picture) == []
    (warning,) = inputs(contract, base=COLOURS).picture("front", "base", picture)
    assert told_mean(warning) == pytest.approx(picture.mean(), abs=1.5)
    assert "107" in warning and "55" in warning


def test_grey_pictures_are_told_unless_training_was_grey(contract):
    grey = scene(colour=0.0)
    _, coded = cv2.imencode(".jpg", grey)
    decoded = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR))
    for picture in (grey, decoded):
        (warning,) = inputs(contract, base=COLOURS).picture("front", "base", picture)
        assert "camera front" in warning and "grey" in warning
    trained = TrainedImage(np.full(3, 110.0), np.full(3, 50.0))
    assert inputs(contract, base=trained).picture("front", "base", grey) == []


def test_joints_in_training_are_the_same_in_another_process(contract: Contract) -> None:
    count = len(contract.joints)
    state = TrainedState(-np.ones(count), np.ones(count), np.full(count, 0.2), np.arange(count) == 1)
    received = TrainedState.of_lists(json.loads(json.dumps(state.as_lists())))
    for name, values in vars(state).items():
        np.testing.assert_array_equal(getattr(received, name), values)


@pytest.mark.parametrize(
    "lists",
    [None, 3, [], {}, {"low": [0.0]}, {"low": [0.0], "high": [1.0], "room": ["x"], "still": [0]}]
    + [{"low": [0.0], "high": [1.0, 2.0], "room": [0.1], "still": [0]}]
    + [
        {"low": [low], "high": [1.0], "room": [0.1], "still": [0]}
        for low in (math.nan, math.inf, 10**400, [0.0])
    ]
    + [dict.fromkeys(("low", "high", "room", "still"), "x" * 10**6)],
)
def test_joints_in_training_are_refused_when_malformed(lists: object) -> None:
    with pytest.raises(ValueError, match="joints in training") as refusal:
        TrainedState.of_lists(lists)
    assert len(str(refusal.value)) < 500
