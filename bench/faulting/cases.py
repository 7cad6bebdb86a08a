"""The faults: how each is made, how long it lasts, and what it stands for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import rclpy
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from faulting.relay import ROBOT
from faulting.robot import NODES, Robot
from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import LAUNCHER

Step = Callable[[Robot], None]


@dataclass(frozen=True)
class Case:
    """One fault. begin, end: make and remove it. lasts_s: between the two. patience_s: for the robot to go on
    by itself. stack: which of STACKS. orders: services that a person calls in this order if it does not.
    moves: the fault itself is a motion of the robot, which ends with the fault."""

    name: str
    title: str
    begin: Step
    end: Step = lambda robot: None
    lasts_s: float = 3.0
    patience_s: float = 4.0
    stack: str = "plain"
    orders: tuple[str, ...] = ("trajectory/resume",)
    moves: bool = False


STACKS: dict[str, dict] = {
    "plain": {},
    "sim_time": {"sim_time": True},
    "launched": {},
}


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
    """Another node that publishes something at a given rate until it is ended."""

    def __init__(self, robot: Robot, kind: type, topic: str, profile: object, make: Callable) -> None:
        self._operator = Operator(robot.contract)
        self.node = rclpy.create_node("stranger", context=self._operator.node.context)
        publisher = self.node.create_publisher(kind, topic, profile)
        self._operator._executor.add_node(self.node)
        self.node.create_timer(0.02, lambda: publisher.publish(make(robot)))
        robot.began_ns = robot.relay.time_ns()

    def end(self) -> None:
        """Leave the graph."""
        self.node.destroy_node()
        self._operator.close()


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


# What a launch file does: its nodes are told who started them.
LAUNCH = """
import json, os, subprocess, sys
from vla_accel_ros.nodes.running.environment import additional_environment
environment = {**os.environ, **additional_environment()}
started = [subprocess.Popen(command, env=environment) for command in json.loads(sys.argv[1])]
[process.wait() for process in started]
"""


def launched(robot: Robot) -> subprocess.Popen:
    """Run the two nodes as children of a process like `ros2 launch`, instead of our own."""
    for name in ("inference", "trajectory"):
        node = robot.processes[name].process
        node.send_signal(signal.SIGTERM)
        node.wait(20.0)
    commands = [
        [sys.executable, "-m", f"vla_accel_ros.nodes.{name}", "--ros-args", *robot.arguments(name)]
        for name in ("inference", "trajectory")
    ]
    log = (robot.folder / "launched.log").open("ab")
    kept = {name: value for name, value in robot.environment.items() if name != LAUNCHER}
    environment = {**kept, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, json.dumps(commands)], env=environment, stdout=log, stderr=log
    )


def launcher_ends(number: int) -> Step:
    """End the process that started the nodes."""

    def begin(robot: Robot) -> None:
        launcher = launched(robot)
        if not robot.moves_within(60.0):
            robot.asked(lambda: robot.operator.resume(2.0))
            robot.poll(lambda: robot.moves_within(5.0), 60.0, "motion by launched nodes")
        robot.began_ns = robot.relay.time_ns()
        launcher.send_signal(number)
        launcher.wait(20.0)
        time.sleep(3.0)
        robot.orphans = orphans(robot)

    return begin


def orphans(robot: Robot) -> list[int]:
    """End node processes of this contract that this bench did not start; returns them."""
    contract, ours = str(robot.folder), {node.process.pid for node in robot.processes.nodes}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in ours:
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace")
            except OSError:
                continue
            if "vla_accel_ros.nodes." in words and contract in words and "-c" not in words.split("\0")[1:2]:
                found.append(int(entry))
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def _cases() -> list[Case]:
    command = second(JointTrajectory, lambda r: r.contract.controllers[0].topic, qos.COMMAND, other_command)
    joints = second(JointState, lambda r: r.contract.joint_states.topic, qos.SENSOR, other_joints)
    chunk = second(ActionChunk, lambda r: "action_chunk", qos.COMMAND, other_chunk)
    cases = [
        Case("camera-stops", "a camera stops for 3 s", camera("silent"), well),
        Case("camera-repeats", "a driver repeats one frame, old stamp, for 3 s", camera("repeats"), well),
        Case(
            "camera-freezes", "a driver repeats one picture, fresh stamps, for 3 s", camera("freezes"), well
        ),
        Case("joints-stop", "joint_states stop for 3 s", spoil(joints="silent"), well),
        Case(
            "joints-freeze",
            "joints freeze with fresh stamps (drive off) for 3 s",
            spoil(joints="freezes"),
            well,
        ),
        Case("joint-glitch", "one joint is reported 0.4 rad away for 0.1 s", glitch(0.1)),
        Case("joint-sample", "one joint is reported 0.4 rad away for 10 ms", glitch(0.01)),
        Case("second-joints", "a second publisher on joint_states for 3 s", *joints),
        Case("second-commands", "a second publisher on a command topic for 3 s", *command),
        Case("second-chunks", "a second publisher on action_chunk for 3 s", *chunk),
        Case("wild-chunks", "chunks with a joint at 40 rad for 3 s", wild("wild"), well),
        Case("nan-chunks", "chunks with a NaN for 3 s", wild("nan"), well),
        Case("long-chunks", "chunks of 64,000 actions for 3 s", wild("long"), well),
        Case(
            "late-delivery", "trajectories reach the controllers 100 ms late for 3 s", spoil(late_s=0.1), well
        ),
        Case("hold", "~/hold", order("trajectory/hold")),
        Case("release", "~/release", order("trajectory/release"), orders=("trajectory/reclaim",)),
        Case("home", "~/home", order("trajectory/home"), lasts_s=0.0, moves=True),
        Case(
            "held-kill",
            "kill -9 of trajectory while held, started again",
            held_and_killed,
            started_again("trajectory"),
            1.0,
            12.0,
        ),
        Case("disk-full", "the recorder's disk is full", full_disk, lasts_s=2.0),
    ]
    for name in NODES:
        kill, again = send(signal.SIGKILL, name), started_again(name)
        patience_s = 40.0 if name == "inference" else 15.0
        cases.append(
            Case(f"kill-{name}", f"kill -9 of {name}, started again after 3 s", kill, again, 3.0, patience_s)
        )
        stop, go_on = send(signal.SIGSTOP, name), send(signal.SIGCONT, name)
        cases.append(Case(f"stop-{name}", f"{name} is stopped (SIGSTOP) for 2 s", stop, go_on, 2.0, 6.0))
    cases += [
        Case("slow-model", "inference gets an eighth of its processor time for 6 s", *slowed(0.125), 6.0),
        Case(
            "clock-ahead",
            "ROS time jumps 5 s ahead",
            jump(5.0),
            lasts_s=0.0,
            patience_s=6.0,
            stack="sim_time",
        ),
        Case(
            "clock-back", "ROS time jumps 5 s back", jump(-5.0), lasts_s=0.0, patience_s=6.0, stack="sim_time"
        ),
        Case(
            "clock-stands",
            "ROS time stands still for 2 s",
            spoil(clock_stands=True),
            well,
            2.0,
            6.0,
            "sim_time",
        ),
    ]
    for number in (signal.SIGTERM, signal.SIGKILL):
        title = f"{number.name} to the process that launched the nodes"
        name = f"launcher-{number.name[3:].lower()}"
        cases.append(Case(name, title, launcher_ends(number), lasts_s=0.0, patience_s=0.0, stack="launched"))
    return cases


CASES = _cases()
ROBOT_TOPICS = ROBOT
