"""What a contract may say beyond the simulated arm: transports, controllers of every kind, limits of a URDF,
mapped grippers, a home, and actions that are twists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from good_contract import FROM_URDF, GOOD, SERVO, URDF, load, load_with_urdf

from vla_accel_ros.contract.contract import TWIST, Camera, Controller, Twist


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
    with pytest.raises(ValueError, match=r"upper = 2\.02\d* .* 2 "):
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
        "robot: 2026-99-99\n",
        "robot: " + "9" * 5000 + "\n",
        "max_skew_s: " + "9" * 400 + "\n" + GOOD.replace("max_skew_s: 0.05\n", ""),
    ],
    ids=["a day that is none", "a long number", "a number too big"],
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


HISTORY = "max_age_s: 0.2, history: {ago_2: 0.4, ago_1: 0.2}}"


def test_camera_has_earlier_frames_as_further_pictures(tmp_path):
    contract = load(tmp_path, GOOD.replace("max_age_s: 0.2}", HISTORY, 1).replace("top/image_raw", "top"))
    top, side = contract.cameras
    assert top.history == (("ago_2", 0.4), ("ago_1", 0.2)) and side.history == ()
    earlier = [replace(top, name=name, image=name, history=()) for name in ("ago_2", "ago_1")]
    assert contract.pictures == (top, side, *earlier)
    assert list(contract.keys.images) == ["base_0_rgb", "left_wrist_0_rgb", "ago_2", "ago_1"]
    assert load(tmp_path, GOOD).pictures == load(tmp_path, GOOD).cameras


@pytest.mark.parametrize(
    ("history", "facts"),
    [
        ("{}", ["cameras.top.history"]),
        ("[a]", ["cameras.top.history"]),
        ("{a: soon}", ["cameras.top.history.a", "soon"]),
        ("{a: 0}", ["cameras.top.history.a", "30 Hz"]),
        ("{a: -0.2}", ["cameras.top.history.a", "-0.2"]),
        ("{a: 0.2, b: 0.22}", ["cameras.top.history.b", "0.22", "30 Hz"]),
        ("{a: 3.4}", ["cameras.top.history.a", "3.4", "3.33"]),
        ("{base_0_rgb: 0.2}", ["cameras.top.history.base_0_rgb", "cameras.top.image"]),
        ("{left_wrist_0_rgb: 0.2}", ["cameras.top.history.left_wrist_0_rgb", "cameras.side.image"]),
        ("{side: 0.2}", ["cameras.top.history.side", "cameras.side"]),
    ],
)
def test_history_that_cannot_be_is_refused_with_its_field(tmp_path, history, facts):
    text = GOOD.replace("max_age_s: 0.2}", f"max_age_s: 0.2, history: {history}}}", 1)
    with pytest.raises(ValueError, match=r"cameras\.top\.history") as refused:
        load(tmp_path, text)
    assert all(fact in str(refused.value) for fact in facts) and "\n" not in str(refused.value)


def test_history_may_be_written_with_two_digits_of_a_period(tmp_path):
    text = GOOD.replace("rate_hz: 30, max_age_s: 0.2}", "rate_hz: 3, max_age_s: 0.4, history: {a: 0.33}}", 1)
    assert load(tmp_path, text).cameras[0].history == (("a", 0.33),)
