"""The service get_action_chunk: what an engine computes of the same request, beside the stream of chunks."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import numpy as np
import pytest
import yaml
from builders import JOINTS, make_checkpoint, make_config, make_stats
from calling import call
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from sensor_msgs.msg import Image, JointState
from stand_ins import Arm
from std_msgs.msg import Float64MultiArray, MultiArrayDimension

from vla_accel_msgs.srv import GetActionChunk
from vla_accel_ros import EngineConfig, Observation
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.inference.action_chunks import agreement, service_kind
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract

POSITIONS = [0.1, -0.2, 0.5, 0.3, 0.0, 0.4]
ERROR, PRODUCED = GetActionChunk.Response.ERROR, GetActionChunk.Response.CHUNK_PRODUCED


@pytest.fixture
def model(tmp_path):
    return make_checkpoint(tmp_path / "model", make_config())


@pytest.fixture
def node(start, model, operator, tmp_path):
    """Of a robot that a person may take over."""
    path, teleop = tmp_path / "contract.yaml", {"topic": "leader", "rate_hz": 50, "max_age_s": 0.2}
    path.write_text(yaml.safe_dump(yaml.safe_load(demo_contract().read_text()) | {"teleop": teleop}))
    options = {"model": str(model), "device": "cpu", "steps": 2, "language_hz": 0.0, "contract": str(path)}
    node = start("inference", autostart=True, **options)
    node.wait_for_log("the model makes")
    return node


def pictures(operator: Operator) -> dict[str, np.ndarray]:
    """A picture of each camera, by the policy's name."""
    shape, rng = (12, 16, 3), np.random.default_rng(0)
    return {camera.image: rng.integers(0, 255, shape, np.uint8) for camera in operator.contract.cameras}


def request(operator: Operator, **changes: Any) -> GetActionChunk.Request:
    """A whole one. changes: of its fields."""
    images = pictures(operator)
    # bgr: colours are by the message's encoding
    messages = [
        Image(height=12, width=16, encoding="bgr8", step=48, data=picture[..., ::-1].tobytes())
        for picture in images.values()
    ]
    names = list(operator.contract.joint_names)
    fields: dict[str, Any] = {
        "images": messages,
        "image_names": list(images),
        "robot_state": JointState(name=names[::-1], position=POSITIONS[::-1]),
        "prompt": "reach the red block",
    }
    return GetActionChunk.Request(**(fields | changes))


def ask(operator: Operator, **changes: Any) -> GetActionChunk.Response:
    return call(operator, GetActionChunk, "get_action_chunk", request(operator, **changes))


def positions(answer: GetActionChunk.Response) -> np.ndarray:
    """[H, D] in the contract's order."""
    names = list(answer.chunk.joint_names)
    rows = np.array([point.positions for point in answer.chunk.points])
    return rows[:, [names.index(name) for name in sorted(names)]]


def rows(data: np.ndarray) -> Float64MultiArray:
    message = Float64MultiArray(data=data.ravel().tolist())
    message.layout.dim = [MultiArrayDimension(size=size) for size in data.shape]
    return message


def test_chunk_of_a_request_is_the_engines_in_robot_units_and_the_joints_order(operator, node, model):
    answer = ask(operator)
    assert (answer.status, answer.message) == (PRODUCED, "")
    contract = operator.contract
    engine = Load(model, EngineConfig(steps=2), device="cpu").engine(contract)  # warmed up as the node's
    state = contract.to_policy(POSITIONS).astype(np.float32)
    with engine.observe(Observation(pictures(operator), state, "reach the red block", 1)) as prefix:
        chunk = engine.act(prefix)
    assert list(answer.chunk.joint_names) == list(contract.joint_names)[::-1]
    limits = np.array([(joint.lower, joint.upper) for joint in contract.joints]).T
    expected = np.clip(contract.to_robot(chunk.actions), *limits)
    order = np.argsort(contract.joint_names)
    np.testing.assert_allclose(positions(answer), expected[:, order], atol=1e-5)
    assert answer.native_control_period == contract.chunk.step_dt_s
    own = answer.policy_action_chunk
    assert [dimension.size for dimension in own.layout.dim] == list(chunk.actions.shape)
    np.testing.assert_allclose(np.reshape(own.data, chunk.actions.shape), chunk.actions, atol=1e-5)


def test_chunk_before_is_continued_and_a_new_episode_continues_nothing(operator, node):
    first = ask(operator)
    before = np.reshape(first.policy_action_chunk.data, (-1, JOINTS)) + 0.3
    wishes = {"previous_action_chunk": rows(before), "frozen_prefix_steps": 4}
    continued, anew = ask(operator, **wishes), ask(operator, **wishes, new_episode=True)
    assert continued.status == anew.status == PRODUCED
    apart = [
        np.abs(np.reshape(a.policy_action_chunk.data, (-1, JOINTS))[:4] - before[:4]).mean()
        for a in (continued, anew)
    ]
    assert apart[0] < 0.8 * apart[1]


def test_chunk_agrees_with_as_many_rows_after_the_frozen_ones_as_asked():
    assert [agreement(4, horizon, 8) for horizon in (0, 2, 100)] == [8, 6, 8]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": " "}, "prompt"),
        ({"image_names": ["base"]}, "names"),
        ({"image_names": ["front", "base_0_rgb"]}, "base_0_rgb"),
        ({"robot_state": JointState(name=["shoulder_pan"], position=[0.0])}, "shoulder_lift"),
        ({"previous_action_chunk": Float64MultiArray(data=[1.0])}, "previous_action_chunk"),
        ({"previous_action_chunk": rows(np.full((3, JOINTS), np.nan))}, "previous_action_chunk"),
        (
            {"previous_action_chunk": rows(np.zeros((3, JOINTS))), "frozen_prefix_steps": 4},
            "frozen_prefix_steps",
        ),
        ({"images": [], "image_names": []}, "has not come yet"),
    ],
)
def test_wrong_request_is_an_error_with_a_sentence_and_the_next_is_answered(operator, node, changes, words):
    answer = ask(operator, **changes)
    assert answer.status == ERROR and words in answer.message and not answer.chunk.points
    unreadable = request(operator).images
    unreadable[0].step = 1
    answer = ask(operator, images=unreadable)
    assert answer.status == ERROR and "image" in answer.message
    assert ask(operator).status == PRODUCED


def test_chunk_of_the_robots_topics_leaves_the_stream_of_chunks_alone(operator, node, cameras, arm: Arm):
    operator.instruct("reach the red block")
    operator.wait(lambda: operator.chunks, 180.0, "chunk")
    for _ in range(3):
        answer = ask(operator, images=[], image_names=[], prompt="")
        assert answer.status == PRODUCED, answer.message
    count = len(operator.chunks)
    operator.wait(lambda: len(operator.chunks) > count + 3, 90.0, "more chunks")
    stamps = [received.chunk.stamp_ns for received in operator.chunks]
    assert stamps == sorted(set(stamps))
    assert "loop: " not in node.log


DEGREE = 0.017453292519943295
AXES = ("base.linear.x", "base.angular.z")
BASE = {
    "topic": "base/cmd_vel",
    "message": "Twist",
    "rate_hz": 20,
    "axes": {"x": 1.0, "yaw": DEGREE},
    "linear": 0.4,
    "angular": 0.02,
    "linear_acceleration": 0.8,
    "angular_acceleration": 2.0,
    "timeout_s": 0.5,
    "odometry": "base/odom",
}


@pytest.fixture
def mobile(start, model, tmp_path):
    """A node of an arm on a base, whose policy counts it in m/s and degrees a second; and its contract."""
    stats = {"state": make_stats(0, JOINTS + 2), "actions": make_stats(1, JOINTS + 2)}
    (model / "assets" / "arm" / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))
    path = tmp_path / "mobile.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(demo_contract().read_text()) | {"base": BASE}))
    options = {"model": str(model), "device": "cpu", "steps": 2, "language_hz": 0.0, "contract": str(path)}
    start("inference", autostart=True, **options).wait_for_log("the model makes")
    return Contract.load(path)


def test_chunk_of_a_mobile_robot_has_the_speeds_of_its_base_by_name(operator, mobile, model):
    names = [*AXES, *operator.contract.joint_names]
    state = JointState(name=names, position=[0.25, 10.0 * DEGREE, *POSITIONS])
    answer = ask(operator, robot_state=state)
    assert (answer.status, answer.message) == (PRODUCED, "")
    engine = Load(model, EngineConfig(steps=2), device="cpu").engine(mobile)
    numbers = np.array([*operator.contract.to_policy(POSITIONS), 0.25, 10.0], np.float32)
    with engine.observe(Observation(pictures(operator), numbers, "reach the red block", 1)) as prefix:
        actions = engine.act(prefix).actions
    assert list(answer.chunk.joint_names) == names
    speeds = np.array([point.positions[:2] for point in answer.chunk.points])
    asked = actions[:, -2:] * [1.0, DEGREE]
    np.testing.assert_allclose(speeds, np.clip(asked, [-0.4, -0.02], [0.4, 0.02]), atol=1e-6)
    for within in (np.abs(asked) < [0.4, 0.02]).T:
        assert within.any() and not within.all()
    own = np.reshape(answer.policy_action_chunk.data, (-1, JOINTS + 2))
    np.testing.assert_allclose(own, actions, atol=1e-5)


def test_chunk_of_a_mobile_robot_needs_the_speeds_of_its_base(operator, mobile, cameras, arm: Arm):
    answer = ask(operator)
    assert answer.status == ERROR and AXES[0] in answer.message
    operator.instruct("reach the red block")
    wishes = {"images": [], "image_names": [], "prompt": ""}
    operator.wait(lambda: len(operator.joints) > 50, 60.0, "joint states")
    assert ask(operator, **wishes).status == ERROR
    odometry = operator.node.create_publisher(Odometry, BASE["odometry"], qos.SENSOR)

    def tell() -> None:
        message = Odometry()
        convert.set_stamp(message.header.stamp, operator.now_ns())
        odometry.publish(message)

    operator.node.create_timer(0.02, tell, clock=Clock(clock_type=ClockType.STEADY_TIME))
    operator.wait(lambda: operator.chunks, 180.0, "chunk")
    answer = ask(operator, **wishes)
    assert answer.status == PRODUCED, answer.message
    assert list(answer.chunk.joint_names)[-2:] == list(AXES)


def test_type_of_the_service_is_moveit_pros_where_that_is_installed(monkeypatch):
    assert service_kind() is GetActionChunk
    theirs = types.SimpleNamespace(GetActionChunk=object())
    monkeypatch.setitem(sys.modules, "moveit_pro_ml_msgs", types.ModuleType("moveit_pro_ml_msgs"))
    monkeypatch.setitem(sys.modules, "moveit_pro_ml_msgs.srv", theirs)
    assert service_kind() is theirs.GetActionChunk
