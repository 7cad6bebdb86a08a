"""How each fault of a running robot is made: a step that begins it and, where needed, one that ends it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import rclpy
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from faulting.robot import Robot
from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.nodes.messages import convert

Step = Callable[[Robot], None]


def spoil(**what: object) -> Step:
    """Make a fault that sets attributes of the relay."""

    def begin(robot: Robot) -> None:
        for name, value in what.items():
            setattr(robot.relay, name, value)

    return begin


def slowed(share: float) -> tuple[Step, Step]:
    """Give inference only this share of its processor time."""
    over = threading.Event()

    def slow(robot: Robot) -> None:
        process = robot.processes["inference"].process
        while not over.wait(0.1 * share):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.1 * (1.0 - share))
            process.send_signal(signal.SIGCONT)

    def begin(robot: Robot) -> None:
        over.clear()
        threading.Thread(target=slow, args=(robot,), daemon=True).start()

    def end(robot: Robot) -> None:
        over.set()

    return begin, end


def well(robot: Robot) -> None:
    """Make the relay pass everything on unchanged."""
    robot.relay.well()


def camera(how: str) -> Step:
    """Make a fault of the wrist camera."""
    return spoil(cameras={"wrist": how})


def glitch(seconds: float) -> Step:
    """Report one joint 0.4 rad away for this long."""

    def begin(robot: Robot) -> None:
        robot.relay.offset = {"elbow_flex": 0.4}
        time.sleep(seconds)
        robot.relay.offset = {}

    return begin


def send(number: int, name: str) -> Step:
    """Send a signal to a node."""

    def begin(robot: Robot) -> None:
        robot.processes[name].process.send_signal(number)

    return begin


def started_again(name: str, dead_s: float = 0.0) -> Step:
    """Restart a node as `respawn` of launch files does."""

    def end(robot: Robot) -> None:
        robot.processes[name].process.wait(30.0)
        time.sleep(dead_s)
        robot.processes[name].start()
        if name == "sim_robot":
            robot.restarted_ns.append(robot.relay.time_ns())

    return end


def order(name: str) -> Step:
    """Call a service of the trajectory node, which may answer late."""

    def begin(robot: Robot) -> None:
        answer = robot.asked(lambda: robot.operator.call(Trigger, name, Trigger.Request(), 30.0, once=True))
        robot.tell(f"{name}: {getattr(answer, 'message', answer)}")

    return begin


class Stranger:
    """Another node that publishes something at a given rate until it is ended. It shares the operator's
    context: a context of its own stops this process, and with it the relay, for a third of a second."""

    def __init__(self, robot: Robot, kind: type, topic: str, profile: object, make: Callable) -> None:
        self._executor = robot.operator._executor
        self.node = rclpy.create_node("stranger", context=robot.operator.node.context)
        publisher = self.node.create_publisher(kind, topic, profile)
        self._executor.add_node(self.node)
        self.node.create_timer(0.02, lambda: publisher.publish(make(robot)))
        robot.began_ns = robot.relay.time_ns()

    def end(self) -> None:
        """Leave the graph."""
        self._executor.remove_node(self.node)
        self.node.destroy_node()


def second(kind: type, topic: Callable[[Robot], str], profile: object, make: Callable) -> tuple[Step, Step]:
    """Make a fault in which a second publisher comes and goes."""
    strangers: list[Stranger] = []

    def begin(robot: Robot) -> None:
        strangers.append(Stranger(robot, kind, topic(robot), profile, make))

    def end(robot: Robot) -> None:
        strangers.pop().end()

    return begin, end


def other_joints(robot: Robot) -> JointState:
    """Publish another robot's joints under this robot's names."""
    message = JointState(name=list(robot.contract.joint_names))
    message.position = [0.5] * len(message.name)
    convert.set_stamp(message.header.stamp, robot.operator.now_ns())
    return message


def other_command(robot: Robot) -> JointTrajectory:
    """Command the arm from another node, slowly, to where it is."""
    controller = robot.contract.controllers[0]
    message = JointTrajectory(joint_names=list(controller.joints))
    point = JointTrajectoryPoint(
        positions=list(map(float, robot.relay.states[-1][1][: len(controller.joints)]))
    )
    point.velocities = [0.0] * len(controller.joints)
    point.time_from_start.sec = 3
    message.points = [point]
    return message


def other_chunk(robot: Robot) -> ActionChunk:
    """Publish another policy's chunk."""
    received = robot.operator.chunks[-1].chunk
    message = ActionChunk(joint_names=list(robot.contract.action_names))
    message.horizon, message.action_dim = received.actions.shape
    message.actions = (received.actions + 0.3).astype(np.float32).ravel().tolist()
    message.step_dt_s = received.step_dt_s
    message.kv_version, message.request_id = 10**6 + int(time.monotonic() * 100), 10**6
    convert.set_stamp(message.header.stamp, robot.operator.now_ns() - 50_000_000)
    return message


def wild(how: str) -> Step:
    """Make a fault in which chunks are corrupted on their way."""

    def chunk(message: ActionChunk) -> ActionChunk:
        actions = np.array(message.actions, np.float32).reshape(message.horizon, message.action_dim)
        if how == "wild":
            actions[:, 0] = 40.0
        elif how == "nan":
            actions[0, 0] = np.nan
        else:
            actions = np.repeat(actions, 2000, axis=0)
            message.horizon = len(actions)
            message.update_magnitudes = [0.0] * len(actions)
        message.actions = actions.ravel().tolist()
        return message

    return spoil(chunk=chunk)


def jump(seconds: float) -> Step:
    """Set /clock to another time."""

    def begin(robot: Robot) -> None:
        robot.relay.jump(round(seconds * 1e9))

    return begin


def full_disk(robot: Robot) -> None:
    """Run a recorder whose disk has less free space than it must keep."""
    recorder = robot.process(
        "recorder",
        autostart=True,
        contract=robot.parameters["trajectory"]["contract"],
        record_dir=str(robot.folder / "bags"),
        keep_free_mb=1_000_000,
    )
    robot.more.append(recorder)
    recorder.start()
    robot.poll(lambda: "kept free" in recorder.log.read_text(), 60.0, "word of the recorder")
    robot.began_ns = robot.relay.time_ns()


def held_and_killed(robot: Robot) -> None:
    """Call ~/hold, then kill the process."""
    order("trajectory/hold")(robot)
    time.sleep(1.0)
    send(signal.SIGKILL, "trajectory")(robot)
