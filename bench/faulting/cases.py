"""The table of faults: which, how long each lasts, and what it stands for."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from faulting.launched import launcher_ends
from faulting.making import (
    Step,
    camera,
    full_disk,
    glitch,
    held_and_killed,
    jump,
    order,
    other_chunk,
    other_command,
    other_joints,
    second,
    send,
    slowed,
    spoil,
    started_again,
    well,
    wild,
)
from faulting.robot import NODES
from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.nodes import qos


@dataclass(frozen=True)
class Case:
    """One fault. begin, end: make and remove it. lasts_s: between the two. patience_s: for the robot to go on
    by itself. stack: which of STACKS. orders: services that a person calls in this order if it does not.
    moves: the fault itself is a motion of the robot, which ends with the fault. chancy: its outcome depends
    on processes or the transport, and so on the instant."""

    name: str
    title: str
    begin: Step
    end: Step = lambda robot: None
    lasts_s: float = 3.0
    patience_s: float = 4.0
    stack: str = "plain"
    orders: tuple[str, ...] = ("trajectory/resume",)
    moves: bool = False
    chancy: bool = False

    @property
    def runs(self) -> int:
        """How often it is measured."""
        return 50 if self.chancy else 5


STACKS: dict[str, dict] = {"plain": {}, "sim_time": {"sim_time": True}, "launched": {}}


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
            "late-delivery",
            "trajectories reach the controllers 100 ms late for 3 s",
            spoil(late_s=0.1),
            well,
            chancy=True,
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
            chancy=True,
        ),
        Case("disk-full", "the recorder's disk is full", full_disk, lasts_s=2.0),
    ]
    for name in NODES:
        kill, again = send(signal.SIGKILL, name), started_again(name)
        patience_s = 40.0 if name == "inference" else 15.0
        title = f"kill -9 of {name}, started again after 3 s"
        cases.append(Case(f"kill-{name}", title, kill, again, 3.0, patience_s, chancy=True))
        stop, go_on = send(signal.SIGSTOP, name), send(signal.SIGCONT, name)
        title = f"{name} is stopped (SIGSTOP) for 2 s"
        cases.append(Case(f"stop-{name}", title, stop, go_on, 2.0, 6.0, chancy=True))
    cases += [
        Case(
            "slow-model",
            "inference gets an eighth of its processor time for 6 s",
            *slowed(0.125),
            6.0,
            chancy=True,
        ),
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
        ends = launcher_ends(number)
        cases.append(Case(name, title, ends, lasts_s=0.0, patience_s=0.0, stack="launched", chancy=True))
    return cases


CASES = _cases()
