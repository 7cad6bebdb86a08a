"""What a contract may say beyond the simulated arm: transports, controllers of every kind, limits of a URDF,
mapped grippers, a home, and actions that are twists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from good_contract import GOOD, load

from vla_accel_ros.contract.contract import TWIST, Camera, Contract, Controller, Twist

URDF = """\
<robot name="two">
  <joint name="a" type="revolute"><limit lower="-2" upper="2" velocity="3" effort="9"/></joint>
  <joint name="b" type="prismatic"><limit lower="0" upper="0.08" velocity="0.2" effort="1"/></joint>
  <joint name="wheel" type="continuous"><limit velocity="1" effort="1"/></joint>
  <joint name="other" type="prismatic"><limit upper="0.08" velocity="0.2"/><mimic joint="b"/></joint>
  <joint name="bare" type="revolute"/>
</robot>
"""

FROM_URDF = """\
robot: two_joints
urdf: two.urdf
acceleration: 5
cameras:
  top: {topic: camera/top/image_raw, image: base_0_rgb, rate_hz: 30, max_age_s: 0.2}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
joints:
  - {name: a, action: delta, upper: 1.5, velocity: 1}
  - {name: b, action: absolute, acceleration: 2}
controllers:
  - {topic: arm/joint_trajectory, joints: [a, b]}
chunk: {step_dt_s: 0.05, max_age_s: 0.6}
"""

SERVO = """\
robot: hand
actions: twist
twist: {per: step, linear: 0.25, angular: 1.0}
cameras:
  top: {topic: camera/top/compressed, image: primary, rate_hz: 30, max_age_s: 0.2,
        transport: compressed, info: camera/top/camera_info}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
joints:
  - {name: a, lower: -1, upper: 2.0, velocity: 1.5, acceleration: 9}
  - {name: b, lower: 0.0, upper: 0.8, velocity: 0.2, acceleration: 2,
     map: {robot: [0.0, 0.8], policy: [1.0, 0.0]}}
controllers:
  - {kind: servo_twist, topic: servo_node/delta_twist_cmds, joints: [a], rate_hz: 50, frame: base_link}
  - {kind: forward_command, topic: hand/commands, joints: [b], rate_hz: 100}
home: {b: 0.1}
chunk: {step_dt_s: 0.2, max_age_s: 0.6}
"""


def load_with_urdf(folder: Path, text: str) -> Contract:
    (folder / "two.urdf").write_text(URDF)
    return load(folder, text)


def test_contract_has_defaults(tmp_path):
    contract = load(tmp_path, GOOD)
    assert [(c.transport, c.info) for c in contract.cameras] == [("raw", "")] * 2
    assert contract.controllers[0] == Controller(
        "arm/joint_trajectory", ("a",), "joint_trajectory", 0.0, "", ""
    )
    assert (contract.actions, contract.twist, contract.home, contract.urdf) == ("joints", None, {}, None)
    assert contract.action_names == contract.joint_names == ("a", "b")


def test_limits_of_a_urdf_can_be_narrowed_inline(tmp_path):
    contract = load_with_urdf(tmp_path, FROM_URDF)
    a, b = contract.joints
    assert (a.lower, a.upper, a.velocity, a.acceleration) == (-2.0, 1.5, 1.0, 5.0)
    assert (b.lower, b.upper, b.velocity, b.acceleration) == (0.0, 0.08, 0.2, 2.0)
    assert contract.urdf == tmp_path / "two.urdf"


def test_urdf_is_read_by_its_absolute_path_and_may_not_be_missing(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "two.urdf").write_text(URDF)
    text = FROM_URDF.replace("two.urdf", str(elsewhere / "two.urdf"))
    assert load(tmp_path, text).joints[0].lower == -2.0
    with pytest.raises(FileNotFoundError, match=r"two\.urdf"):
        load(tmp_path, FROM_URDF)


def test_twist_actions_have_six_columns_before_the_joints(tmp_path):
    contract = load(tmp_path, SERVO)
    assert contract.twist == Twist("step", 0.25, 1.0)
    assert contract.action_names == (*TWIST, "b")
    assert contract.delta_mask.tolist() == [False] * 7
    assert contract.cameras[0] == Camera(
        "camera/top/compressed", 30.0, 0.2, "top", "primary", "compressed", "camera/top/camera_info"
    )
    assert contract.controllers == (
        Controller("servo_node/delta_twist_cmds", ("a",), "servo_twist", 50.0, "", "base_link"),
        Controller("hand/commands", ("b",), "forward_command", 100.0),
    )
    row = np.array([0.01, 0, 0, 0, 0, -0.1, 0.25])
    np.testing.assert_allclose(contract.to_robot(row), [0.01, 0, 0, 0, 0, -0.1, 0.6], atol=1e-12)
    np.testing.assert_allclose(contract.to_policy([0.3, 0.8]), [0.3, 0.0], atol=1e-12)


def test_map_goes_through_its_points_and_beyond(tmp_path):
    contract = load(tmp_path, SERVO)
    np.testing.assert_allclose(contract.to_policy([[0, 0.0], [0, 0.2], [0, 0.8]])[:, 1], [1.0, 0.75, 0.0])
    np.testing.assert_allclose(contract.to_policy([0.0, -0.08])[1], 1.1)


MISTAKES = {
    GOOD: [
        ("robot: two_joints\n", "", "robot is missing"),
        ("two_joints", "two joints", "robot = 'two joints'"),
        ("rate_hz: 30,", "", "cameras.top.rate_hz is missing"),
        ("rate_hz: 30", "rate_hz: 0", "cameras.top.rate_hz = 0"),
        ("rate_hz: 30", "rate_hz: fast", "cameras.top.rate_hz = 'fast'"),
        ("rate_hz: 30", "rate_hz: true", "cameras.top.rate_hz = True"),
        ("rate_hz: 30", "rate_hz: .nan", "cameras.top.rate_hz = nan"),
        ("max_age_s: 0.2", "max_age_s: 0.03", "cameras.top.max_age_s = 0.03"),
        ("max_age_s: 0.2", "max_age_s: 1.0e+300", "cameras.top.max_age_s = 1e+300"),
        ("max_age_s: 0.6", "max_age_s: 3601", "chunk.max_age_s = 3601"),
        ("max_skew_s: 0.05", "max_skew_s: 3601", "max_skew_s = 3601"),
        ("camera/top/image_raw", "c/" + 149 * "a", "cameras.top.topic = "),
        ("topic: camera/top/image_raw", "topic: camera//top", "cameras.top.topic = 'camera//top'"),
        ("left_wrist_0_rgb", '" "', "cameras.side.image = ' '"),
        ("left_wrist_0_rgb", "base_0_rgb", "cameras.side.image = 'base_0_rgb'"),
        ("camera/side/image_raw", "camera/top/image_raw", "cameras.side.topic = 'camera/top/image_raw'"),
        ("max_age_s: 0.3}", "max_age_s: 0.3, max_age: 1}", "cameras.side.max_age = 1"),
        ("max_skew_s: 0.05", "max_skew_s: -1", "max_skew_s = -1"),
        ("lower: -1", "lower: 3", "joints[0].lower = 3.0"),
        ("velocity: 1.5", "velocity: 0", "joints[0].velocity = 0"),
        ("acceleration: 9", "acceleration: -9", "joints[0].acceleration = -9"),
        ("action: delta", "action: relative", "joints[0].action = 'relative'"),
        ("unit: deg", "unit: turns", "joints[0].unit = 'turns'"),
        ("sign: -1", "sign: 2", "joints[0].sign = 2"),
        ("sign: -1", "sign: true", "joints[0].sign = True"),
        ("offset: 90", "ofset: 90", "joints[0].ofset = 90"),
        ("velocity: 1.5", "velocityy: 1.5", "joints[0].velocityy = 1.5"),
        ("name: b,", "name: a,", "joints[1].name = 'a'"),
        ("joints: [b]", "joints: []", "controllers[1].joints = []"),
        ("joints: [b]", "joints: [c]", "controllers[1].joints[0] = 'c'"),
        ("joints: [b]", "joints: [a]", "controllers[1].joints[0] = 'a'"),
        ("  - {topic: hand/joint_trajectory, joints: [b]}\n", "", "joints[1].name = 'b'"),
        ("step_dt_s: 0.05", "step_dt_s: 0", "chunk.step_dt_s = 0"),
        ("step_dt_s: 0.05", "step_dt_s: 50", "chunk.step_dt_s = 50.0"),
        ("step_dt_s: 0.05", "step_dt_s: 0.0001", "chunk.step_dt_s = 0.0001"),
        ("max_age_s: 0.6}", "max_age_s: 0.6, mode: x}", "chunk.mode = 'x'"),
        ("chunk: {step_dt_s: 0.05, max_age_s: 0.6}", "chunk: 3", "chunk = 3"),
        ("chunk:", "extra: 1\nchunk:", "extra = 1"),
        ("chunk:", "robot: again\nchunk:", "the key 'robot' occurs twice"),
        ("  top:", "  a top:", "cameras = 'a top'"),
        ("chunk:", "? [a]\n: 1\nchunk:", "a key is not plain text"),
        ("chunk:", "[", "not valid YAML, fix it here"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, transport: h264}", "cameras.top.transport = 'h264'"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, max_pixels: 40000000}", "cameras.top.max_pixels = 40000000"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, rotation: 45}", "top.rotation = 45"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, crop: 1.5}", "cameras.top.crop = 1.5"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, crop: 0.05}", "cameras.top.crop = 0.05"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, max_pixels: 0}", "top.max_pixels = 0"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, info: //i}", "cameras.top.info = '//i'"),
        ("topic: arm/", "topic: /arm/", "[0].topic = '/arm/joint_trajectory'"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, info: joint_states}", "joint_states.topic = 'joint_states'"),
        ("{topic: arm", "{kind: magic, topic: arm", "controllers[0].kind = 'magic'"),
        ("joints: [a]}", "joints: [a], rate_hz: 50}", "controllers[0].rate_hz = 50"),
        ("joints: [a]}", "joints: [a], frame: tool0}", "controllers[0].frame = 'tool0'"),
        ("{topic: arm", "{kind: forward_command, topic: arm", "controllers[0].rate_hz is missing"),
        ("{topic: arm", "{kind: forward_command, rate_hz: 50, topic: arm", "controllers[0].rate_hz = 50.0"),
        ("{topic: arm", "{kind: servo_joint, rate_hz: 500, topic: arm", "controllers[0].rate_hz = 500.0"),
        (
            "joints: [a]}",
            "joints: [a], action: hand/joint_trajectory}",
            "controllers[0].action = 'hand/joint_trajectory'",
        ),
        (
            "{topic: arm",
            "{kind: servo_twist, rate_hz: 50, frame: x, topic: arm",
            "controllers[0].kind = 'servo_twist'",
        ),
        ("chunk:", "actions: torque\nchunk:", "actions = 'torque'"),
        ("chunk:", "twist: {per: step, linear: 1, angular: 1}\nchunk:", "twist = {"),
        ("chunk:", "home: {c: 0}\nchunk:", "home.c = 0.0"),
        ("chunk:", "home: {a: 3}\nchunk:", "home.a = 3.0"),
        ("chunk:", "home: {}\nchunk:", "home = {}"),
        ("chunk:", "home: {a: up}\nchunk:", "home.a = 'up'"),
        (
            "[a]}\n  - {topic: hand/joint_trajectory, joints: [b]}",
            "[a, b]}\nhome: {a: 0}",
            "home.b is missing",
        ),
        ("acceleration: 9,", "", "joints[0].acceleration is missing"),
        ("unit: m}", "map: {robot: [0, 1], policy: [0, 1]}, unit: m}", "joints[1].unit = 'm'"),
        ("unit: m}", "map: {robot: [1, 1], policy: [0, 1]}}", "joints[1].map.robot = [1.0, 1.0]"),
        ("unit: m}", "map: {robot: [0, 1], policy: [2, 2]}}", "joints[1].map.policy = [2.0, 2.0]"),
        ("unit: m}", "map: {robot: [0], policy: [2, 1]}}", "joints[1].map.robot = [0]"),
        ("unit: m}", "map: {robot: [0, .inf], policy: [2, 1]}}", "joints[1].map.robot[1] = inf"),
        ("unit: m}", "map: {robot: [0, 1.0e+300], policy: [0, 1.0e-300]}}", "joints[1].map = 0.0"),
        ("unit: m}", "map: {robot: [0, 1]}}", "joints[1].map.policy is missing"),
        ("unit: m}", "unit: m, continuous: true}", "joints[1].continuous = True"),
        ("unit: m}", "unit: m, continuous: 1}", "joints[1].continuous = 1"),
        ("upper: 2.0", "upper: 1.0e+6", "joints[0].upper = 1000000.0"),
        ("lower: -1, upper: 2.0", "lower: -101, upper: 101", "joints[0].lower = -101.0"),
        ("lower: -1, upper: 2.0", "lower: 0, upper: 12.6", "joints[0].upper = 12.6"),
        ("lower: -1, upper: 2.0", "lower: -6.4, upper: 6.4", "joints[0].lower = -6.4"),
        ("velocity: 1.5", "velocity: 90", "joints[0].velocity = 90.0"),
        ("lower: -1", "lower_deg: -1", "joints[0].lower_deg = 'in degrees'"),
        ("lower: -1", "lower: -1, lower_deg: -57", "joints[0].lower_deg = 'in degrees'"),
        ("velocity: 0.2, ", "velocity_deg: 1, ", "joints[1].velocity_deg = 'in degrees'"),
        (
            "lower: -1, upper: 2.0, velocity: 1.5",
            "lower: ???, upper: 2.0, velocity: '???'",
            "not filled in yet (???): joints[0].lower, joints[0].velocity",
        ),
        ("joints: [b]", "joints: [???]", "not filled in yet (???): controllers[1].joints[0]"),
        ("unit: m}", "unit: ???}", "not filled in yet (???): joints[1].unit"),
        ("chunk:", "home: {a: ???}\nchunk:", "not filled in yet (???): home.a"),
        ("robot: two_joints", "robot: ???", "not filled in yet (???): robot"),
        ("lower: -1", "lower: -2.0e+4", "joints[0].lower = -20000.0"),
        ("lower: -1, upper: 2.0", "lower: 0, upper: 1.0e-9", "joints[0].lower = 0.0"),
        ("velocity: 1.5", "velocity: 1.0e-12", "joints[0].velocity = 1e-12"),
        ("velocity: 1.5", "velocity: 1.0e+9", "joints[0].velocity = 1000000000.0"),
        ("acceleration: 9,", "acceleration: 1.0e+9,", "joints[0].acceleration = 1000000000.0"),
        ("acceleration: 9,", "acceleration: 0.1,", "joints[0].acceleration = 0.1"),
    ],
    FROM_URDF: [
        ("name: a", "name: arm", "joints[0].name = 'arm'"),
        ("name: b", "name: other", "joints[1].name = 'other'"),
        ("upper: 1.5, velocity: 1}", "lower: 2, upper: 1.5, velocity: 1}", "joints[0].lower = 2.0"),
        ("upper: 1.5, velocity: 1}", "lower: 2, velocity: 1}", "joints[0].lower = 2.0"),
        ("velocity: 1}", "velocity: 0}", "joints[0].velocity = 0"),
        ("upper: 1.5", "upper: 2.5", "joints[0].upper = 2.5"),
        ("upper: 1.5", "lower: -3", "joints[0].lower = -3.0"),
        ("velocity: 1}", "velocity: 4}", "joints[0].velocity = 4.0"),
        ("acceleration: 5\n", "acceleration: 0\n", "acceleration = 0"),
        ("two.urdf", "3.5", "urdf = 3.5"),
        ("upper: 1.5", "continuous: true", "joints[0].continuous = True"),
    ],
    SERVO: [
        ("twist: {per: step, linear: 0.25, angular: 1.0}\n", "", "twist is missing"),
        ("per: step", "per: hour", "twist.per = 'hour'"),
        ("linear: 0.25", "linear: 0", "twist.linear = 0"),
        ("acceleration: 9}", "acceleration: 9, action: delta}", "joints[0].action = 'delta'"),
        (", frame: base_link", "", "controllers[0].frame is missing"),
        ("rate_hz: 50, frame: base_link", "rate_hz: 300, frame: base_link", "controllers[0].rate_hz = 300"),
        (
            "servo_twist, topic: servo_node/delta_twist_cmds, joints: [a], rate_hz: 50, frame: base_link",
            "servo_joint, topic: servo_node/joints, joints: [a], rate_hz: 50",
            "actions = 'twist'",
        ),
        (
            "kind: forward_command, topic: hand/commands, joints: [b], rate_hz: 100",
            "kind: servo_twist, topic: hand/commands, joints: [b], rate_hz: 100, frame: x",
            "controllers[1].kind = 'servo_twist'",
        ),
    ],
}


@pytest.mark.parametrize(
    ("good", "old", "new", "fact"),
    [(good, *case) for good, cases in MISTAKES.items() for case in cases],
    ids=lambda text: text.split("\n", 1)[0],
)
def test_contract_names_path_and_value_of_a_mistake(tmp_path, good, old, new, fact):
    assert old in good
    with pytest.raises(ValueError) as refusal:
        load_with_urdf(tmp_path, good.replace(old, new, 1))
    assert str(refusal.value).startswith(f"{tmp_path / 'robot.yaml'}: ")
    assert fact in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_joint_needs_a_range_when_the_urdf_gives_none(tmp_path):
    text = FROM_URDF.replace("name: b", "name: wheel").replace("[a, b]", "[a, wheel]")
    with pytest.raises(ValueError) as refusal:
        load_with_urdf(tmp_path, text)
    lower, upper = str(refusal.value).splitlines()[1:]
    assert "joints[1].lower is missing" in lower and "joints[1].upper is missing" in upper
    assert f"{tmp_path / 'two.urdf'} gives this continuous joint none" in lower


def test_topics_of_inputs_may_be_outside_of_the_robots_namespace(tmp_path):
    text = GOOD.replace("topic: joint_states", "topic: /joint_states").replace(
        "topic: camera", "topic: /camera"
    )
    contract = load(tmp_path, text.replace("max_age_s: 0.2}", "max_age_s: 0.2, info: /top/camera_info}", 1))
    assert contract.joint_states.topic == "/joint_states"
    assert [camera.topic for camera in contract.cameras] == [
        "/camera/top/image_raw",
        "/camera/side/image_raw",
    ]
    assert contract.cameras[0].info == "/top/camera_info"


@pytest.mark.parametrize("height, width", [(4, 6), (5, 7), (1, 3)])
def test_picture_is_turned_clockwise_and_cropped_around_its_centre(tmp_path, height, width):
    picture = np.arange(height * width * 3).reshape(height, width, 3).astype(np.uint8)
    pixel = {
        0: lambda y, x: picture[y, x],
        90: lambda y, x: picture[height - 1 - x, y],
        180: lambda y, x: picture[height - 1 - y, width - 1 - x],
        270: lambda y, x: picture[x, width - 1 - y],
    }
    for rotation, source in pixel.items():
        text = GOOD.replace("max_age_s: 0.2}", f"max_age_s: 0.2, rotation: {rotation}}}", 1)
        view = load(tmp_path, text).cameras[0].view(picture)
        tall = (width, height, 3) if rotation in (90, 270) else (height, width, 3)
        assert view.shape == tall and np.shares_memory(view, picture)
        for y in range(tall[0]):
            for x in range(tall[1]):
                assert (view[y, x] == source(y, x)).all()
        half = load(tmp_path, text.replace("rotation", "crop: 0.5, rotation", 1)).cameras[0].view(picture)
        sides = [max(1, round(side / 2)) for side in tall[:2]]
        y, x = ((side - length) // 2 for side, length in zip(tall, sides))
        np.testing.assert_array_equal(half, view[y : y + sides[0], x : x + sides[1]])


def test_limits_may_be_in_degrees(tmp_path):
    text = GOOD.replace(
        "lower: -1, upper: 2.0, velocity: 1.5, acceleration: 9",
        "lower_deg: -101, upper_deg: 90, velocity_deg: 180, acceleration_deg: 720",
    )
    a = load(tmp_path, text).joints[0]
    degrees = np.array([-101, 90, 180, 720])
    np.testing.assert_allclose([a.lower, a.upper, a.velocity, a.acceleration], degrees * np.pi / 180)
    narrower = FROM_URDF.replace("upper: 1.5, velocity: 1", "upper_deg: 45, velocity_deg: 90")
    a = load_with_urdf(tmp_path, narrower).joints[0]
    np.testing.assert_allclose([a.lower, a.upper, a.velocity], [-2.0, np.pi / 4, np.pi / 2])
    with pytest.raises(ValueError, match=r"upper = 2\.02\d* is wider than 2 in "):
        load_with_urdf(tmp_path, narrower.replace("45", "116"))
    slides = GOOD.replace(
        "lower: 0.0, upper: 0.08, velocity: 0.2, acceleration: 2",
        """lower_deg: 0.0,
        upper_deg: 0.08, velocity_deg: 0.2, acceleration_deg: 2""",
    )
    with pytest.raises(ValueError, match="upper_deg"):
        load(tmp_path, slides)


@pytest.mark.parametrize(
    "line",
    [
        "{name: a, lower: -6.2832, upper: 6.2832,",  # a UR's, two turns
        "{name: a, continuous: true, lower: -101, upper: 101,",
        "{name: a, map: {robot: [0, 255], policy: [0, 1]}, lower: 0, upper: 255,",  # what its driver counts
    ],
)
def test_limits_are_taken_when_a_joint_can_have_them(tmp_path, line):
    text = GOOD.replace("{name: a, lower: -1, upper: 2.0,", line).replace(
        "unit: deg, sign: -1, offset: 90", ""
    )
    text = text.replace("action: delta, }", "action: delta}").replace("action: delta, \n", "action: delta\n")
    load(tmp_path, text)
    slides = text.replace("upper: 0.08", "upper: 30")  # a rail of 30 m
    assert load(tmp_path, slides).joints[1].upper == 30.0
    with pytest.raises(ValueError, match=r"joints\[1\].upper = 30"):
        load(tmp_path, slides.replace(", unit: m", ""))


def test_limits_of_a_urdf_are_judged_like_written_ones(tmp_path):
    (tmp_path / "two.urdf").write_text(URDF.replace('lower="-2" upper="2"', 'lower="-114" upper="114"'))
    with pytest.raises(ValueError, match=r"joints\[0\].lower = -114"):
        load(tmp_path, FROM_URDF)


def test_joint_is_continuous_when_the_urdf_or_the_contract_says_so(tmp_path):
    text = FROM_URDF.replace("name: b", "name: wheel, lower: -50, upper: 50").replace("[a, b]", "[a, wheel]")
    assert [joint.continuous for joint in load_with_urdf(tmp_path, text).joints] == [False, True]
    counted = text.replace("name: wheel", "name: wheel, continuous: false").replace("50", "3")
    assert not load_with_urdf(tmp_path, counted).joints[1].continuous
    endless = GOOD.replace("name: a", "name: a, continuous: true")
    assert [joint.continuous for joint in load(tmp_path, endless).joints] == [True, False]


def test_joint_without_any_limit_in_the_urdf_needs_them_in_the_contract(tmp_path):
    text = FROM_URDF.replace("name: b", "name: bare").replace("[a, b]", "[a, bare]")
    with pytest.raises(ValueError) as refusal:
        load_with_urdf(tmp_path, text)
    for line, key in zip(str(refusal.value).splitlines()[1:], ("lower", "upper", "velocity"), strict=True):
        assert f"joints[1].{key} is missing" in line and "gives this revolute joint none" in line
    whole = text.replace("acceleration: 2}", "acceleration: 2, lower: -1, upper: 1, velocity: 0.5}")
    bare = load_with_urdf(tmp_path, whole).joints[1]
    assert (bare.lower, bare.upper, bare.velocity) == (-1.0, 1.0, 0.5)


def test_joint_of_a_urdf_that_may_not_move_matters_only_when_a_contract_names_it(tmp_path):
    broken = '<joint name="lid" type="revolute"><limit lower="0" upper="0" effort="0" velocity="0"/></joint>'
    (tmp_path / "two.urdf").write_text(URDF.replace("</robot>", f"{broken}</robot>"))
    assert load(tmp_path, FROM_URDF).joint_names == ("a", "b")
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, FROM_URDF.replace("[a, b]", "[a, lid]").replace("name: b", "name: lid"))
    for fact in ("robot.yaml: joints[1].name = 'lid'", f"{tmp_path / 'two.urdf'}: joint 'lid'", "upper = 0"):
        assert fact in str(refusal.value)


def test_urdf_is_named_when_it_is_wrong(tmp_path):
    (tmp_path / "two.urdf").write_text("<robot>")
    with pytest.raises(ValueError, match=r"two\.urdf: "):
        load(tmp_path, FROM_URDF)


@pytest.mark.parametrize(
    "text",
    [
        "robot: " + "[" * 5000,
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{n}: &{n} [{', '.join([f'*{o}'] * 9)}]\n" for o, n in zip("abcdefgh", "bcdefghi"))
        + "robot: *i\n",
        "robot: &r {r: *r}\n",
        "robot: 2026-99-99\n",
        "robot: " + "9" * 5000 + "\n",
        "max_skew_s: " + "9" * 400 + "\n" + GOOD.replace("max_skew_s: 0.05\n", ""),
    ],
    ids=["deep", "aliases of aliases", "endless", "a day that is none", "a long number", "a number too big"],
)
def test_contract_refuses_a_hostile_file_in_a_sentence(tmp_path, text):
    with pytest.raises(ValueError, match="") as refusal:
        load(tmp_path, text)
    assert str(refusal.value).startswith(f"{tmp_path / 'robot.yaml'}: ")
    assert len(str(refusal.value)) < 2000


def test_following_errors_are_usual_given_or_off(tmp_path):
    text = FROM_URDF.replace("velocity: 1}", "velocity: 1, following_error: {rad: 0.4, s: 0.5}}").replace(
        "acceleration: 2}", "acceleration: 2, following_error: off}"
    )
    (tmp_path / "two.urdf").write_text(URDF)
    a, b = load(tmp_path, text).joints
    assert (a.following.rad, a.following.s) == (0.4, 0.5) and np.isinf(b.following.rad)
    a, b = load(tmp_path, FROM_URDF).joints
    assert (a.following.rad, a.following.s) == (pytest.approx(0.15), 0.2) and b.following.rad == 0.05
    with pytest.raises(ValueError, match=r"joints\[0\].following_error.rad = 0"):
        load(tmp_path, text.replace("rad: 0.4", "rad: 0"))
    for zero in ("0", "0.0"):  # which is no error at all, and not any
        with pytest.raises(ValueError, match=rf"joints\[1\].following_error = {zero} "):
            load(tmp_path, text.replace("following_error: off", f"following_error: {zero}"))
