"""`vla contract make` from what a robot offers: by a bag of it, and by a survey."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from builders import CAMERAS, make_checkpoint
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.models.checkpoints.checkpoint import describe
from vla_accel_ros.nodes.interfaces import definition, type_name
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic
from vla_accel_ros.sensing.survey import ControllerOffer, Survey
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.contract.cameras import match
from vla_accel_ros.tools.contract.write import Robot, fill, write_contract

S = 1_000_000_000
ARM = ("pan", "lift", "elbow", "flex", "roll")
LIMITS = dict(zip((*ARM, "grip"), (1.1, 1.2, 1.3, 1.4, 1.5, 1.6)))
OWN = {
    "acceleration": "5.0",
    "action": "absolute",
    "step_dt_s": "0.05",
    "name": "joint_{}",
    "topic": "topic_{}",
}
URDF = "<robot name='r'>{}</robot>".format(
    "".join(
        f"<joint name='{name}' type='revolute'><limit lower='-{limit}' upper='{limit}' velocity='2'/></joint>"
        for name, limit in LIMITS.items()
    )
)


def frame(colour: int) -> Image:
    data = np.full((4, 6, 3), colour, np.uint8).tobytes()
    return Image(height=4, width=6, encoding="bgr8", step=18, data=data)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """Two cameras at 10 and 20 Hz, six joints at 50 Hz in another order, trajectories for the arm, a URDF."""
    bag = McapBag(tmp_path / "bag")
    messages: list[tuple[int, str, object]] = [(0, "/robot_description", String(data=URDF))]
    messages += [(number * S // 10, "/front/image_raw", frame(10)) for number in range(8)]
    messages += [(number * S // 20, "/wrist/image_raw", frame(20)) for number in range(16)]
    joints = JointState(name=["grip", *reversed(ARM)], position=[0.5, 0.1, 0.2, 0.3, 0.4, 57.0])
    messages += [(number * S // 50, "/joint_states", joints) for number in range(40)]
    messages += [(S // 4, "/arm/joint_trajectory", JointTrajectory(joint_names=list(ARM)))]
    for kind, topic in {(type(message), topic) for _, topic, message in messages}:
        name = type_name(kind)
        bag.add(Topic(topic, name, definition(name), reliable=True))
    for at_ns, topic, message in sorted(messages, key=lambda entry: entry[0]):
        if hasattr(message, "header"):
            convert.set_stamp(message.header.stamp, S + at_ns)
        bag.write(topic, 9 * S + at_ns, serialize_message(message))
    bag.close()
    return tmp_path / "bag"


def make(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    assert main(["contract", "make", *map(str, arguments)]) == 0
    output = capsys.readouterr()
    return output.out, output.err


def test_contract_of_a_bag_has_its_topics_rates_limits_and_controller(
    bag: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = ["--map", f"front={CAMERAS[0]}", f"/wrist/image_raw={CAMERAS[1]}"]
    text, told = make(capsys, "--model", model, "--bag", bag, "--files", tmp_path / "files", *mapping)
    (tmp_path / "robot.yaml").write_text(fill(text, OWN))
    contract = Contract.load(tmp_path / "robot.yaml")
    cameras = {camera.image: (camera.topic, camera.rate_hz) for camera in contract.cameras}
    assert cameras == {CAMERAS[0]: ("/front/image_raw", 10.0), CAMERAS[1]: ("/wrist/image_raw", 20.0)}
    assert (contract.joint_states.topic, contract.joint_states.rate_hz) == ("/joint_states", 50.0)
    assert {joint.name: joint.upper for joint in contract.joints} == LIMITS
    assert contract.controllers[0].topic == "arm/joint_trajectory"
    assert contract.controllers[0].joints == ARM
    assert "topic_1" in contract.controllers[1].topic and contract.controllers[1].joints == ("grip",)
    for camera, colour in (("front", 10), ("wrist", 20)):
        file = tmp_path / "files" / f"{camera}.png"
        assert str(file) in told
        picture = cv2.imread(str(file))
        assert picture is not None and picture[0, 0].tolist() == [colour] * 3
    pan = next(line for line in text.splitlines() if "name: pan" in line)
    assert "57" in pan and "degrees" in pan


def test_contract_of_a_robot_every_value_has_its_source_beside_it(
    bag: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = make(capsys, "--model", model, "--bag", bag, "--files", tmp_path / "files")
    values = [line for line in text.splitlines() if re.search(r": \S", line.partition("#")[0])]
    assert len(values) > 40
    assert [line for line in values if "  # " not in line] == []


def test_contract_of_a_robot_leaves_open_which_camera_is_which_and_check_says_so(
    bag: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = make(capsys, "--model", model, "--bag", bag, "--files", tmp_path / "files")
    file = tmp_path / "robot.yaml"
    file.write_text(text)
    assert main(["contract", "check", str(file)]) == 2
    output = capsys.readouterr()
    missing = [line for line in output.out.splitlines() if line.startswith("missing")]
    asked = [line for line in missing if "image: ???" in line]
    assert len(asked) == 2 and all(CAMERAS[0] in line and CAMERAS[1] in line for line in asked)
    number = next(n for n, line in enumerate(text.splitlines(), 1) if "step_dt_s" in line)
    assert any(f"robot.yaml:{number}:" in line for line in missing)
    assert "cameras.front.image" in output.err and "chunk.step_dt_s" in output.err


def test_contract_of_a_robot_answer_at_the_terminal_says_which_camera_is_which(
    bag: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([f"{CAMERAS[1]}\n", "\n"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", lambda: next(answers))
    text, told = make(capsys, "--model", model, "--bag", bag, "--files", tmp_path / "files")
    assert re.search(rf"topic: /front/image_raw.*\n +image: {CAMERAS[1]} ", text)
    assert re.search(r"topic: /wrist/image_raw.*\n +image: \?\?\? ", text)
    assert "camera front" in told


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        (f"back={CAMERAS[0]}", ("back", "front", "wrist")),
        ("front=middle", ("middle", *CAMERAS)),
        ("front", ("CAMERA=IMAGE",)),
    ],
)
def test_contract_of_a_robot_mapping_of_what_is_not_there_is_refused_with_what_is(
    word: str,
    parts: tuple[str, ...],
    bag: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [
        "contract",
        "make",
        "--model",
        model,
        "--bag",
        bag,
        "--files",
        tmp_path / "files",
        "--map",
        word,
    ]
    try:
        assert main(list(map(str, command))) == 2
    except SystemExit as end:
        assert end.code == 2
    refusal = capsys.readouterr().err
    assert all(part in refusal for part in parts)


def test_contract_of_a_robot_mapping_of_a_camera_that_no_policy_can_use_says_why(model: Path) -> None:
    survey = Survey("the graph")
    survey.note({f"/{name}/image_raw": ["sensor_msgs/msg/Image"] for name in ("deep", "dead")})
    deep = Image(height=2, width=2, encoding="16UC1", step=4, data=bytes(8))
    survey.image("/deep/image_raw", serialize_message(deep), S)
    for name, reason in (("deep", "16UC1"), ("dead", "/dead/image_raw: it sent nothing")):
        with pytest.raises(ValueError, match=reason):
            match(describe(model), survey, {name: CAMERAS[0]})


def offered(*controllers: ControllerOffer) -> Survey:
    survey = Survey("the graph")
    survey.note({"/joint_states": ["sensor_msgs/msg/JointState"]})
    survey.joints("/joint_states", list(LIMITS), [0.0] * 6, S, S)
    survey.controllers = list(controllers)
    return survey


def sections(model: Path, survey: Survey, tmp_path: Path) -> tuple[str, Contract]:
    text = write_contract(describe(model), Robot(survey))
    values = {**OWN, "lower": "-1", "upper": "1", "velocity": "1", "rate_hz": "50"}
    (tmp_path / "robot.yaml").write_text(fill(text, values))
    return text, Contract.load(tmp_path / "robot.yaml")


GRIPPERS = {
    "forward_command": ("/grip", "forward_command", "/grip/commands", ("grip",), "", "active"),
    "gripper_command": ("/grip", "gripper_command", "/grip/goals", ("grip",), "/grip/gripper_cmd", "active"),
}


@pytest.mark.parametrize("kind", GRIPPERS)
def test_contract_of_a_robot_takes_the_active_controllers_with_actions_and_names_the_others(
    model: Path, tmp_path: Path, kind: str
) -> None:
    text, contract = sections(
        model,
        offered(
            ControllerOffer(
                "/arm", "joint_trajectory", "/arm/joint_trajectory", ARM, "/arm/follow", "active"
            ),
            ControllerOffer(
                "/idle", "joint_trajectory", "/idle/joint_trajectory", ARM, "", "inactive", "it is idle"
            ),
            ControllerOffer("/goals", "", "", ("grip",), "", "active", "it takes goals"),
            ControllerOffer(*GRIPPERS[kind]),
        ),
        tmp_path,
    )
    assert contract.joint_names == (*ARM, "grip")
    arm, grip = contract.controllers
    assert (arm.topic, arm.kind, arm.action, arm.joints) == (
        "arm/joint_trajectory",
        "joint_trajectory",
        "arm/follow",
        ARM,
    )
    rate_hz = 100.0 if kind == "forward_command" else 20.0
    assert (grip.topic, grip.kind, grip.rate_hz) == (GRIPPERS[kind][2].lstrip("/"), kind, rate_hz)
    assert grip.action == GRIPPERS[kind][4].lstrip("/")
    assert "it is idle" in text and "it takes goals" in text


def test_contract_of_a_robot_does_not_choose_between_two_controllers_of_the_same_joints(
    model: Path, tmp_path: Path
) -> None:
    two = [
        ControllerOffer(f"/{n}", "joint_trajectory", f"/{n}/joint_trajectory", (*ARM, "grip")) for n in "ab"
    ]
    text, contract = sections(model, offered(*two), tmp_path)
    (line,) = [line for line in text.splitlines() if "- topic: ???" in line]
    assert "/a/joint_trajectory" in line and "/b/joint_trajectory" in line
    assert len(contract.controllers) == 1


def test_contract_of_a_robot_with_other_joints_than_the_policys_asks_for_names(
    model: Path, tmp_path: Path
) -> None:
    survey = offered()
    survey.joints("/joint_states", ["head"], [0.0], S, S)
    text, contract = sections(model, survey, tmp_path)
    assert text.count("- name: ???") == 6 and "head" in text
    assert contract.joint_names == tuple(f"joint_{i}" for i in range(1, 7))


def test_contract_of_an_empty_bag_says_what_to_start(model: Path, tmp_path: Path, capsys) -> None:
    bag = McapBag(tmp_path / "bag")
    bag.add(Topic("/words", "std_msgs/msg/String", "string data\n", reliable=True))
    bag.close()
    assert main(["contract", "make", "--model", str(model), "--bag", str(tmp_path / "bag")]) == 2
    assert "driver" in capsys.readouterr().err
