"""`vla doctor` on a running robot: a healthy one is well, and each planted fault is found with its fix."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import rclpy
from builders import CALM, make_checkpoint, make_config
from calling import call, change, state, stop_cameras
from drivers import Drivers, Fault
from lifecycle_msgs.msg import State, Transition
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CompressedImage
from stack import CALM_SENSORS, Stack, set_going, wait_for_motion, wait_for_rest
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model
from vla_accel_ros.tools.cli import main

S = 1_000_000_000
BASE = """
base:
  topic: base/cmd_vel
  message: TwistStamped
  frame: base_link
  odometry: base/odom
  rate_hz: 20.0
  axes: {x: 1.0, yaw: 1.0}
  linear: 0.4
  angular: 1.0
  linear_acceleration: 0.8
  angular_acceleration: 2.0
  timeout_s: 0.5
"""
Report = list[tuple[str, str, str]]


@pytest.fixture
def verdict(capsys, ros_domain):
    """verdict(): the exit status, and "about: what -> mend" of every reason for which it could not move."""

    def verdict() -> tuple[int, list[str]]:
        capsys.readouterr()
        status = main(["doctor", "--json", "--seconds", "1"])
        told = json.loads(capsys.readouterr().out)
        assert told["could_move"] == (not told["why_not"])
        return status, [f"{f['about']}: {f['what']} -> {f['mend']}" for f in told["why_not"]]

    return verdict


@pytest.fixture
def doctor(capsys, ros_domain):
    """doctor(*arguments): the exit status, and (section, level, sentence) of every finding."""

    def doctor(*arguments: object) -> tuple[int, Report]:
        capsys.readouterr()
        status = main(["doctor", "--json", *map(str, arguments)])
        findings = json.loads(capsys.readouterr().out)["findings"]
        return status, [
            (f["section"], f["level"], f"{f['about']}: {f['what']}; {f['mend']}") for f in findings
        ]

    return doctor


def told(report: Report, section: str, level: str, *words: str) -> None:
    """Fail, showing the section, unless a finding of that level has all the words."""
    there = [(at, text) for where, at, text in report if where == section]
    assert any(at == level and all(word in text for word in words) for at, text in there), there


def levels(report: Report, section: str) -> set[str]:
    return {level for where, level, _ in report if where == section}


@pytest.fixture
def patient(tmp_path) -> Path:
    """The simulated arm's contract, but what may be old: on a busy machine a camera pauses, and is slow then,
    and not an error."""
    path = tmp_path / "patient.yaml"
    path.write_text(demo_contract().read_text().replace("max_age_s: 0.5", "max_age_s: 60.0"))
    return path


def test_a_healthy_robot_is_well(start, operator, doctor, patient):
    start("sim_robot")
    start("trajectory", autostart=True, lead_s=0.1, contract=str(patient))
    start(
        "inference", autostart=True, language_hz=0.0, steps=2, contract=str(patient), model=str(demo_model())
    )
    operator.wait(lambda: operator.measured, 90.0, "joint state")
    operator.instruct(operator.reset("reach", 1))
    operator.wait(lambda: operator.sent, 180.0, "trajectory")
    status, report = doctor("--seconds", 2)
    assert status == 0, [finding for finding in report if finding[1] == "error"]
    assert not [finding for finding in report if finding[1] == "error"], report
    for section in ("clock", "contract", "graph", "controllers", "model"):
        assert levels(report, section) == {"ok"}, report
    told(report, "nodes", "ok", "/inference: is active")
    told(report, "nodes", "ok", "/trajectory: is active")
    told(report, "streams", "ok", "observation: ", "could be made of all streams")
    told(report, "model", "ok", "pi05 fits the contract: 2 cameras, 6 numbers an action")
    told(report, "machine", "ok", "3 of our nodes on this machine")


def test_whether_the_robot_could_move_from_its_start_to_a_motion(start, operator, verdict, tmp_path):
    start("sim_robot", **CALM_SENSORS)
    operator.wait(lambda: operator.measured, 90.0, "joint state")
    status, (trajectory, inference) = verdict()
    assert status == 1
    assert trajectory == "/trajectory: does not run -> ros2 launch vla_accel_ros bringup.launch.py"
    assert inference.startswith("/inference: does not run")

    model = make_checkpoint(tmp_path / "policy", make_config(horizon=32), reach=CALM)
    start("trajectory", lead_s=0.1)
    start("inference", model=str(model), steps=2, language_hz=0.0)
    both = ("trajectory", "inference")
    assert [state(operator, node) for node in both] == [State.PRIMARY_STATE_UNCONFIGURED] * 2
    status, (trajectory, inference) = verdict()
    assert status == 1 and trajectory.startswith("/trajectory: is unconfigured -> ros2 lifecycle set /traj")
    assert inference.endswith("lifecycle set /inference configure && ros2 lifecycle set /inference activate")

    assert all(
        change(operator, node, Transition.TRANSITION_CONFIGURE) for node in ("trajectory", "inference")
    )
    assert change(operator, "trajectory", Transition.TRANSITION_ACTIVATE)
    status, (inference, *_) = verdict()
    assert status == 1
    assert inference == "/inference: is inactive -> ros2 lifecycle set /inference activate"

    assert change(operator, "inference", Transition.TRANSITION_ACTIVATE)
    status, (inference,) = verdict()
    assert status == 1 and inference.startswith("/inference: has no instruction yet -> vla say")

    set_going(operator)
    assert verdict() == (0, [])


def test_whether_the_robot_could_move_when_something_keeps_it(start, operator, verdict, tmp_path):
    stack = Stack(start, tmp_path)
    set_going(operator)
    operator.hold()
    wait_for_rest(operator)
    status, (held,) = verdict()
    assert status == 1 and held.startswith("/trajectory: held by the operator -> ~/resume: ros2 service call")
    operator.resume()
    wait_for_motion(operator)

    stop_cameras(operator, "wrist")
    wait_for_rest(operator)
    status, reasons = verdict()
    assert status == 1 and any("camera wrist" in reason or "camera/wrist" in reason for reason in reasons)
    stop_cameras(operator)
    wait_for_motion(operator)

    for process in (stack.inference.process, stack.trajectory.process):
        process.send_signal(signal.SIGSTOP)
        status, reasons = verdict()
        process.send_signal(signal.SIGCONT)
        assert status == 1
        assert any(f"hangs: process {process.pid} was stopped by a signal" in reason for reason in reasons)
        assert any(f"kill -CONT {process.pid}" in reason for reason in reasons)
        assert not any("kill -9" in reason for reason in reasons)

    answer = call(operator, Trigger, "trajectory/release", Trigger.Request())
    assert answer.success, answer.message
    status, reasons = verdict()
    assert status == 1 and any("~/reclaim: ros2 service call /trajectory/reclaim" in r for r in reasons)


def test_wrong_types_missing_joints_and_slow_cameras(doctor, contract, patient):
    cameras = {"front": Fault(type=CompressedImage), "wrist": Fault(rate_hz=12.0)}
    joints = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_flex", "wrist_roll", "gripper")
    with Drivers(contract, cameras, joints, listen=None) as drivers:
        elsewhere = rclpy.create_node("inference", namespace="elsewhere", context=drivers.context)
        status, report = doctor("--contract", patient, "--model", demo_model(), "--seconds", 1)
        elsewhere.destroy_node()
    assert status == 1
    told(report, "nodes", "warning", "/inference: does not run; ros2 launch vla_accel_ros bringup.launch.py")
    told(report, "nodes", "warning", "/elsewhere/inference runs: give --namespace")
    told(report, "graph", "error", "CompressedImage, not sensor_msgs/msg/Image; write transport: compressed")
    told(
        report, "graph", "warning", "nobody listens to /arm_controller/joint_trajectory; start its controller"
    )
    told(report, "streams", "error", "camera/front: nothing arrived on camera/front/image_raw")
    told(
        report,
        "streams",
        "warning",
        "camera/wrist: arrives at ",
        "instead of 30; start the node with the Fast",
    )
    told(
        report, "streams", "error", "no state of elbow_flex; fix the names of joints", "did you mean 'elbow'?"
    )
    told(report, "streams", "error", "observation: none could be made: no frame of camera front")
    told(report, "controllers", "warning", "its controller does not answer with its parameters; check")
    told(report, "model", "ok", "fits the contract")


def test_a_base_whose_speed_the_policy_sees(doctor, patient):
    patient.write_text(patient.read_text() + BASE)
    with Drivers(Contract.load(patient)):
        _, report = doctor("--contract", patient, "--seconds", 1)
    assert ("streams", "error") not in {(section, level) for section, level, _ in report}, report
    told(report, "streams", "ok", "observation")


def test_clocks_encodings_qos_and_controller_parameters(doctor, contract):
    cameras = {"front": Fault(stamp=lambda now_ns: now_ns - 3 * S), "wrist": Fault(encoding="16UC1")}
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    parameters: dict[str, object] = {"joints": ["a", "b"], "interpolation_method": "none"}
    with Drivers(contract, cameras, listen=latched, parameters=parameters):
        status, report = doctor("--contract", demo_contract(), "--seconds", 1)
    assert status == 1
    told(
        report,
        "streams",
        "error",
        "camera/front: is 3.",
        "s old on arrival, max_age_s allows 0.5; synchronise",
    )
    told(report, "streams", "error", "camera/wrist: camera wrist: ", "16UC1")
    told(
        report,
        "graph",
        "error",
        "is offered durability volatile by us but /arm_controller requests transient_loc",
    )
    told(report, "controllers", "error", "arm_controller/joint_trajectory: the controller moves a, b but the")
    told(report, "controllers", "error", "its interpolation_method is none, so it jumps")
    told(report, "model", "warning", "is not known: inference does not run; give --model")


def test_a_model_of_other_cameras_and_simulated_time_that_stands_still(start, doctor, tmp_path):
    model = make_checkpoint(tmp_path / "model", make_config(image_names=("base_0_rgb", "right_wrist_0_rgb")))
    inference = start("inference", autostart=True, model=str(model))
    trajectory = start("trajectory", autostart=True, use_sim_time=True)
    inference.wait_for_log("cannot configure")
    trajectory.wait_for_log("nobody publishes")
    status, report = doctor("--seconds", 1.5)
    assert status == 1
    told(
        report,
        "nodes",
        "warning",
        "/inference: is unconfigured; read its log, then: ros2 lifecycle set /inference",
    )
    told(report, "nodes", "error", "inference: inference: cannot configure: cameras.wrist.image")
    told(
        report,
        "clock",
        "error",
        "use_sim_time is true in trajectory but nobody publishes /clock, so that time",
    )
    told(
        report,
        "model",
        "error",
        "cameras.wrist.image: 'left_wrist_0_rgb' is not known to the model in ",
        str(model),
    )


def test_a_graph_of_nobody_and_a_contract_that_is_none(doctor, tmp_path):
    status, report = doctor("--contract", tmp_path / "none.yaml")
    assert status == 1
    told(report, "nodes", "error", "graph: no node but this one is in the graph of ROS_DOMAIN_ID ")
    told(report, "contract", "error", "none.yaml", "fix it")


def test_a_robot_in_a_namespace(start, doctor):
    start("trajectory", "r1", autostart=True).wait_for_log("nobody publishes")
    _, report = doctor("--seconds", 1, "--namespace", "r1")
    told(report, "nodes", "ok", "/r1/trajectory: is active")
    told(report, "nodes", "warning", "/r1/inference: does not run")
    told(report, "graph", "warning", "nobody publishes /r1/joint_states")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seconds", "0"], "--seconds is 0: give 0.5 to 600"),
        (["--domain", "900"], "--domain is 900: give 0 to 232"),
    ],
)
def test_arguments_that_cannot_be(capsys, arguments, sentence):
    assert main(["doctor", *arguments]) == 2
    assert sentence in capsys.readouterr().err
