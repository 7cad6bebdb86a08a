"""Contacts, faults of a force sensor and its driver's death, at the level of what a controller receives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from calling import call
from chunks import Policy
from force_driver import QUANTITIES, Sensor
from geometry_msgs.msg import WrenchStamped
from rclpy.serialization import serialize_message
from stand_ins import ARM, motion_of, write_contract
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import Motion
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract

RATE_HZ = 500.0
FORWARD = {"topic": "arm_positions/commands", "kind": "forward_command", "rate_hz": RATE_HZ}
JTC = {"topic": "arm_controller/joint_trajectory"}
WRITER = """
import sys, time
from vla_accel_ros.sensing.force_slot import ForceWriter
writer, k = ForceWriter(sys.argv[1]), 0
while True:
    k += 1
    writer.write((0.01 * (k % 7), 0, 0, 0, 0, 0), time.time_ns())
    time.sleep(0.001)
"""


@pytest.fixture
def slot() -> str:
    return f"wrist-{os.getpid()}-{time.time_ns()}"


@pytest.fixture(params=[FORWARD, JTC], ids=["forward_command", "joint_trajectory"])
def controller(request) -> dict:
    return request.param


@pytest.fixture
def contract(tmp_path, slot, controller) -> Contract:
    # The machine of the tests is busy: what is late is not what is tested here.
    wrench = {"slot": slot, "rate_hz": 1000, "max_age_s": 1.0, **QUANTITIES}
    force = {"wrench": wrench, "retreat": {"rest_s": 0.2}}
    joint_fields = yaml.safe_load(demo_contract().read_text())["joints"]
    joints = [{**joint, "following_error": "off"} for joint in joint_fields]
    return Contract.load(write_contract(tmp_path, controller, force=force, joints=joints))


@pytest.fixture
def node(start, tmp_path, contract):
    return start("trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"))


@pytest.fixture
def policy(operator, arm) -> Policy:
    policy = Policy(operator)
    policy.goal = np.array([1.2, 0.9, 2.2, 1.3, -1.0, 0.7])
    return policy


@pytest.fixture
def sensor(slot):
    sensor = Sensor(slot)
    yield sensor
    sensor.over = True
    sensor.join()


def moving(operator, policy, arm, by: float = 0.25) -> None:
    begin = arm.array(ARM)
    try:
        operator.wait(policy.drives(lambda: np.abs(arm.array(ARM) - begin).max() > by), 120.0, "motion")
    except TimeoutError as error:
        raise AssertionError(f"{error}; {motion_of(operator)!r}; goal {policy.goal}, at {begin}") from None


def wait_until_still(operator, policy, arm, seconds: float = 0.4) -> None:
    newest = [arm.array(ARM), time.monotonic()]

    def still() -> bool:
        if np.abs(arm.array(ARM) - newest[0]).max() > 1e-9:
            newest[:] = [arm.array(ARM), time.monotonic()]
        return time.monotonic() - newest[1] > seconds

    operator.wait(policy.drives(still), 90.0, "an arm that stands")


def test_a_contact_makes_it_go_back_and_it_goes_on_by_itself(operator, arm, policy, sensor, node):
    moving(operator, policy, arm)
    sensor.force = 14.0
    furthest = arm.array(ARM)
    operator.wait(policy.drives(lambda: "gives way: force is 1" in node.log), 60.0, "word of it")
    furthest = np.maximum(furthest, arm.array(ARM))
    operator.wait(policy.drives(lambda: (furthest - arm.array(ARM)).max() > 0.05), 60.0, "a way back")
    sensor.force = 1.0

    def held() -> bool:
        holding = [motion for motion in operator.motions if motion.state == Motion.HOLDING]
        return any("gives way: force is" in reason for motion in holding for reason in motion.reasons)

    operator.wait(held, 60.0, "a hold because of the force")
    operator.wait(
        policy.drives(lambda: np.abs(arm.array(ARM) - policy.goal[:5]).max() < 0.02), 120.0, "arm at the goal"
    )
    assert not arm.rejected
    wanted = {"force z", "bias of force z", "sample to command p99 [ms]", "gave way"}

    def told() -> bool:
        line = operator.diagnostics.get("trajectory: force wrench")
        return line is not None and wanted <= {value.key for value in line.values}

    operator.wait(told, 90.0, "diagnostics of the sensor")


def test_a_collision_is_held_with_its_sentence_also_by_the_next_process(operator, arm, policy, sensor, node):
    moving(operator, policy, arm)
    sensor.force = 60.0
    sentence = "force is 59.0 N, most of it +59.0 on z; the limit is 30 N: free the arm; ~/resume goes on"
    operator.wait(policy.drives(lambda: sentence in motion_of(operator)), 60.0, "word of it")
    assert operator.diagnostics["trajectory: motion"].level == b"\x02"
    wait_until_still(operator, policy, arm)
    node.kill()
    sensor.force = 1.0
    node.start()
    operator.wait(
        policy.drives(lambda: operator.motions and sentence in list(operator.motions[-1].reasons)),
        120.0,
        "a new process that knows",
    )
    position = arm.array(ARM)
    end_s = time.monotonic() + 1.0
    operator.wait(policy.drives(lambda: time.monotonic() > end_s), 30.0, "a second")
    np.testing.assert_allclose(arm.array(ARM), position, atol=1e-6)
    assert call(operator, Trigger, "trajectory/resume", Trigger.Request()).success
    moving(operator, policy, arm, 0.05)


def test_a_driver_that_is_killed_stops_the_arm_and_a_new_one_lets_it_go_on(
    operator, arm, policy, slot, node, tmp_path
):
    def driver() -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", WRITER, slot])

    first = driver()
    try:
        moving(operator, policy, arm)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        sentence = "has sent nothing from the last 1 s: its writer has ended: start it again"
        operator.wait(policy.drives(lambda: sentence in motion_of(operator)), 60.0, "word of it")
        wait_until_still(operator, policy, arm)
        policy.goal = np.array([0.0, 0.0, 0.8, 0.3, 0.0, 0.5])  # it may have come to the other
        second = driver()
    finally:
        first.kill()
    try:
        moving(operator, policy, arm, 0.05)
    finally:
        second.kill()
        second.wait()


def test_a_topic_does_the_same_and_stops_the_arm_when_it_falls_silent_or_has_bytes_that_are_none(
    operator, arm, policy, start, tmp_path, controller
):
    wrench = {"topic": "wrist/wrench", "rate_hz": 100, "max_age_s": 0.5, **QUANTITIES}
    path = write_contract(tmp_path, controller, force={"wrench": wrench, "retreat": {"rest_s": 0.2}})
    publisher = operator.node.create_publisher(WrenchStamped, "wrist/wrench", qos.SENSOR)
    message, count, tells = WrenchStamped(), [0], ["well"]
    message.header.frame_id = "a_frame_of_some_length"
    message.wrench.force.z = 1.0

    def send() -> None:
        count[0] += 1
        message.wrench.force.x = 0.01 * (count[0] % 7)
        convert.set_stamp(message.header.stamp, operator.now_ns())
        if tells[0] == "well":
            publisher.publish(message)
        elif tells[0] == "nothing but bytes":
            publisher.publish(serialize_message(message)[:40])

    timer = operator.node.create_timer(0.01, send)
    node = start("trajectory", autostart=True, contract=str(path))
    moving(operator, policy, arm)
    answer = call(operator, Trigger, "trajectory/tare", Trigger.Request())
    assert not answer.success and "call ~/hold first" in answer.message
    silence = "force sensor wrench (topic wrist/wrench) has sent nothing from the last 0.5 s: "
    goals = [np.array([0.0, 0.0, 0.8, 0.3, 0.0, 0.5]), policy.goal]
    for fault, why in (
        ("nothing", "is its driver running?"),
        ("nothing but bytes", "its sample has 0 numbers, not 6"),
    ):
        tells[0] = fault
        operator.wait(policy.drives(lambda why=why: silence + why in motion_of(operator)), 60.0, "word of it")
        wait_until_still(operator, policy, arm)
        policy.goal = goals.pop(0)
        tells[0] = "well"
        moving(operator, policy, arm)  # by itself
    message.wrench.force.z = 60.0
    operator.wait(policy.drives(lambda: "force is 59.0 N" in motion_of(operator)), 60.0, "word of it")
    wait_until_still(operator, policy, arm)
    operator.node.destroy_timer(timer)
    assert "running" in node.log and not arm.rejected
