"""A scripted expert that can say what to do from any state, so that it can label states it would never visit.

Its goal is a function of the present view alone: its desired height falls with the distance to the block or
pad (a funnel), and the gripper command follows from the positions of tip and fingers. There is no position in
a script to lose, so it recovers from pushes, slips and arbitrary starts, and its labels are learnable from
one image. It remembers only two things, in Memory: the velocity of the command, for smoothness, and whether
it is undoing a failed grasp. A label is a rollout: the expert drives a copy of the physics for a chunk's
length and never touches the robot. A block that moves by itself stands still in the rollout, because no
single image shows where it is going.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vla_accel_ros.sim import kinematics
from vla_accel_ros.sim.kinematics import GRIPPER_CLOSED, GRIPPER_OPEN, LOWER, UPPER
from vla_accel_ros.sim.rendering import mujoco
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import FOLLOW, PLACE, Task
from vla_accel_ros.sim.world import BLOCKS, READY_HEIGHT_M, BlockPose, View

STEP_DT_S = 1 / 30
BRANCH_STEP_S = 1 / 120  # physics of a label's rollout; a test bounds its difference from 1/480

GRASP_Z = 0.012  # [m] tip height at which a block on the table is gripped
HOVER_Z = 0.07  # tip height from which a funnel descends: the grasp-ready point
CARRY_Z = 0.085
DROP_Z = 0.015

# Per coordinate: pan [rad], radius [m], z [m], pitch, roll, gripper [rad].
GAIN = (5.0, 5.0, 5.0, 4.0, 4.0, 12.0)  # [1/s] of the approach, before the speed limits
SPEED = (1.5, 0.32, 0.28, 1.5, 2.5, 3.0)
ACCELERATION = (5.0, 1.2, 1.3, 7.0, 9.0, 40.0)
SMOOTH_S = 0.1  # time constant with which the command's speed follows the wanted speed
JOINT_SPEED = 2.7  # [rad/s] of any arm joint
WRIST_REACH = (0.115, 0.325)  # [m] from the lift axis; the links allow 0.089 to 0.33
MAX_LEAD = 0.15  # [rad] the command may run ahead of the measured arm joints


@dataclass
class Memory:
    """All that the expert remembers.

    velocity: of the command, in (pan, radius, z, pitch, roll, gripper) [rad/s, m/s]. reopening: a grasp
    closed on nothing, and the fingers are opening again.
    """

    velocity: list[float] = field(default_factory=lambda: [0.0] * 6)
    reopening: bool = False


@dataclass(frozen=True)
class Goal:
    """Where the command should go: pan, radius, z, pitch, roll, gripper; `sideways` scales speed over the
    table."""

    coordinates: tuple[float, float, float, float, float, float]
    sideways: float


def _ramp(value: float) -> float:
    return 0.0 if value < 0 else 1.0 if value > 1 else value


def _funnel(distance_m: float, bottom_m: float, top_m: float, mouth_m: float = 0.005) -> float:
    """Height to keep at this horizontal distance from the goal: bottom_m inside the mouth, 3 m per m higher
    outside, at most top_m."""
    return min(top_m, bottom_m + 3.0 * max(0.0, distance_m - mouth_m))


def _grasp_roll(view: View, block: str, pan: float) -> float:
    """wrist_roll that puts the fingers on opposite faces: the smallest turn; between equal ones, the nearer
    to the present angle."""
    base = pan - view.blocks[block].yaw
    candidates = [base + n * math.pi / 2 for n in range(-3, 4)]
    roll_now = view.joints[4]
    return min(candidates, key=lambda roll: abs(roll) + 0.5 * abs(roll - roll_now))


def goal(task: Task, view: View, memory: Memory, command: kinematics.Pose) -> Goal:
    """The present goal of the command. Updates memory.reopening.

    command: pose of the commanded joints, which leads the measured pose by the servos' lag.
    """
    block = view.blocks[task.block]
    pan, radius = math.atan2(block.y, block.x), math.hypot(block.x, block.y)
    distance = math.hypot(command.x - block.x, command.y - block.y)
    if task.family != PLACE:
        roll = 0.0 if task.family == FOLLOW else _grasp_roll(view, task.block, pan)
        height = block.z + READY_HEIGHT_M
        clear = _ramp(1 - (height - 0.012 - command.z) / 0.03)
        return Goal((pan, radius, height, 0.0, roll, GRIPPER_OPEN), clear)

    assert task.pad is not None
    pad_x, pad_y = view.pads[task.pad]
    if view.held == task.block:
        return _carry(view, block, (pad_x, pad_y), command)
    if view.on_pad(task.block, task.pad, 0.04):
        return _leave(view, command)
    return _grasp(task, view, memory, command, (pan, radius, distance))


def _carry(view: View, block: BlockPose, pad: tuple[float, float], command: kinematics.Pose) -> Goal:
    """The block is in the gripper: lift, move over the pad, lower, let go."""
    tip = view.tip
    # Aim the block, not the tip, at the pad's centre.
    x, y = pad[0] - (block.x - tip.x), pad[1] - (block.y - tip.y)
    pan, radius = math.atan2(y, x), math.hypot(x, y)
    distance = math.hypot(command.x - x, command.y - y)
    height = _funnel(distance, DROP_Z, CARRY_Z, mouth_m=0.006)
    clear = _ramp(1 - (height - 0.012 - command.z) / 0.03)
    is_above = math.hypot(block.x - pad[0], block.y - pad[1]) < 0.014 and tip.z < DROP_Z + 0.006
    gripper = GRIPPER_OPEN if is_above else GRIPPER_CLOSED
    return Goal((pan, radius, height, 0.0, view.joints[4], gripper), clear)


def _leave(view: View, command: kinematics.Pose) -> Goal:
    """The block stands on its pad: open, then straight up and wait above it."""
    pan, radius = math.atan2(command.y, command.x), math.hypot(command.x, command.y)
    opened = _ramp((view.gripper - 0.42) / 0.1)
    height = command.z + opened * max(0.0, 0.10 - command.z)
    return Goal((pan, radius, height, 0.0, view.joints[4], GRIPPER_OPEN), 0.0)


def _grasp(
    task: Task, view: View, memory: Memory, command: kinematics.Pose, to_block: tuple[float, float, float]
) -> Goal:
    """The block lies on the table: come over it, descend with open fingers, close when around it."""
    pan, radius, distance = to_block
    block, tip = view.blocks[task.block], view.tip
    bottom = max(GRASP_Z, block.z - 0.008)
    roll = _grasp_roll(view, task.block, pan)
    _, lateral, across = view.in_gripper(task.block)
    low = abs(tip.z - bottom)
    aligned = math.hypot(lateral, across) < 0.008 and abs(view.joints[4] - roll) < 0.12
    closing = view.gripper < 0.5 and math.hypot(lateral, across) < 0.02 and low < 0.02
    if view.gripper < 0.27:
        memory.reopening = True
    elif view.gripper > 0.55:
        memory.reopening = False
    if ((aligned and low < 0.006) or closing) and not memory.reopening:
        return Goal((pan, radius, bottom, 0.0, view.joints[4], GRIPPER_CLOSED), 0.3)
    # Narrow fingers or a turned wrist would land on the block: stay above until both are ready.
    unready = max(_ramp((0.55 - view.gripper) / 0.1), _ramp((abs(view.joints[4] - roll) - 0.15) / 0.2))
    height = max(_funnel(distance, bottom, HOVER_Z), bottom + unready * (HOVER_Z - bottom))
    clear = _ramp(1 - (height - 0.012 - command.z) / 0.03)
    return Goal((pan, radius, height, 0.0, roll, GRIPPER_OPEN), clear)


def next_target(
    task: Task, view: View, command: tuple[float, ...], memory: Memory, dt_s: float = STEP_DT_S
) -> tuple[float, ...]:
    """The joint target [6] rad due dt_s from now. Updates memory.

    command: the present joint target [6] rad, from which the motion continues.
    """
    arm = [
        max(measured - MAX_LEAD, min(measured + MAX_LEAD, target))
        for measured, target in zip(view.joints[:5], command[:5])
    ]
    pose = kinematics.forward(*arm)
    aim = goal(task, view, memory, pose)
    current = _coordinates((*arm, command[5]))
    rates = _rates(current, aim)
    moved = []
    for i, rate in enumerate(rates):
        change = (rate - memory.velocity[i]) * min(1.0, dt_s / SMOOTH_S)
        limit = ACCELERATION[i] * dt_s
        memory.velocity[i] += max(-limit, min(limit, change))
        moved.append(current[i] + memory.velocity[i] * dt_s)
    pan, radius, z, pitch, roll, gripper = moved
    target: tuple[float, ...] = (pan, *kinematics.planar(*_reachable(radius, z, pitch)), roll, gripper)
    # Near full stretch a slow tip needs a fast elbow: slow down all joints, and the remembered velocity.
    fastest = max(abs(angle - joint) for angle, joint in zip(target, command[:5])) / dt_s
    if fastest > JOINT_SPEED:
        share = JOINT_SPEED / fastest
        target = tuple(joint + share * (angle - joint) for angle, joint in zip(target, command))
        memory.velocity = [share * velocity for velocity in memory.velocity]
    return tuple(max(low, min(high, angle)) for low, angle, high in zip(LOWER, target, UPPER))


def _coordinates(joints: Sequence[float]) -> tuple[float, ...]:
    """Pan, radius, z, pitch, roll, gripper of six joint angles."""
    pose = kinematics.forward(*joints[:5])
    return joints[0], math.hypot(pose.x, pose.y), pose.z, pose.pitch, pose.roll, joints[5]


def _rates(here: tuple[float, ...], wanted: Goal) -> list[float]:
    """Wanted speed of each coordinate; pan and radius are scaled together, so that the tip moves straight."""
    errors = [target - measured for target, measured in zip(wanted.coordinates, here)]
    rates = [max(-top, min(top, gain * error)) for gain, error, top in zip(GAIN, errors, SPEED)]
    across = math.hypot(GAIN[0] * errors[0] * here[1], GAIN[1] * errors[1])
    scale = wanted.sideways * min(1.0, SPEED[1] / max(across, 1e-9))
    rates[0] = max(-SPEED[0], min(SPEED[0], GAIN[0] * errors[0] * scale))
    rates[1] = GAIN[1] * errors[1] * scale
    return rates


def _reachable(radius: float, z: float, pitch: float) -> tuple[float, float, float]:
    """Radius, height [m] and pitch of the nearest pose whose wrist is within the arm's reach."""
    hand = math.pi - pitch
    out = radius - kinematics.SHOULDER_FORWARD - kinematics.HAND * math.sin(hand)
    up = z - kinematics.SHOULDER_HEIGHT - kinematics.HAND * math.cos(hand)
    distance = math.hypot(out, up)
    scale = max(WRIST_REACH[0], min(WRIST_REACH[1], distance)) / max(distance, 1e-6)
    return radius + (scale - 1) * out, z + (scale - 1) * up, pitch


class Expert:
    """The expert at one robot: `act` drives, `chunk` labels. Neither changes the result of the other."""

    def __init__(self, robot: SimRobot) -> None:
        self.robot = robot
        self._model = copy.copy(robot.model)
        self._model.opt.timestep = BRANCH_STEP_S
        self._data = mujoco.MjData(self._model)
        self.memory = Memory()

    def reset(self) -> None:
        """Forget; call after a reset or a jump of the robot."""
        self.memory = Memory()

    def act(self) -> np.ndarray:
        """The joint target [6] rad for the coming 1/30 s."""
        self.memory.velocity = self._velocity()
        return np.array(
            next_target(self.robot.task, self.robot.view(), tuple(self.robot.target.tolist()), self.memory)
        )

    def chunk(self, horizon: int = 32, step_dt_s: float = STEP_DT_S) -> np.ndarray:
        """The expert's absolute joint targets from here, float32 [horizon, 6] rad, step_dt_s apart.

        The first is due one step from now. The robot's state does not change.
        """
        robot, data = self.robot, self._data
        data.qpos[:], data.qvel[:], data.ctrl[:] = robot.data.qpos, robot.data.qvel, robot.data.ctrl
        data.qacc_warmstart[:] = robot.data.qacc_warmstart
        memory = Memory(self._velocity(), self.memory.reopening)
        command = tuple(robot.target.tolist())
        steps = max(1, round(step_dt_s / BRANCH_STEP_S))
        targets = np.empty((horizon, 6), dtype=np.float32)
        pads = robot.pads
        pinned = BLOCKS.index(robot.task.block) if robot.task.family == FOLLOW else None
        for row in targets:
            view = View.from_qpos(data.qpos.tolist(), pads)
            target = next_target(robot.task, view, command, memory, step_dt_s)
            for i in range(steps):  # as the ramp in SimRobot.step, at the middle of each coarse step
                part = (i + 0.5) / steps
                data.ctrl[:6] = [a + part * (b - a) for a, b in zip(command, target)]
                data.ctrl[6] = data.ctrl[5]
                mujoco.mj_step(self._model, data)
            if pinned is not None:
                data.qpos[7 + 7 * pinned : 14 + 7 * pinned] = robot.data.qpos[
                    7 + 7 * pinned : 14 + 7 * pinned
                ]
                data.qvel[7 + 6 * pinned : 13 + 6 * pinned] = 0.0
            row[:] = command = target
        return targets

    def _velocity(self) -> list[float]:
        """The command's velocity in the expert's coordinates, from the robot's command alone."""
        target, rate = self.robot.target, self.robot.target_velocity
        current = _coordinates(target.tolist())
        previous = _coordinates((target - STEP_DT_S * rate).tolist())
        velocity = [(b - a) / STEP_DT_S for a, b in zip(previous, current)]
        return [max(-1.2 * top, min(1.2 * top, v)) for v, top in zip(velocity, SPEED)]
