"""One episode in simulation time: engine, trajectory buffer and controllers, as on the robot, without ROS.

Observations are taken at a fixed period and their chunks take effect a fixed latency later, so an episode
depends on its seed and the weights alone, not on how fast this machine is. Both default to what the demo
shows on two processor cores. The control conditions withhold what the policy should need: the right
instruction, the images, or all motion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_accel_ros.control.buffer import TrajectoryBuffer
from vla_accel_ros.control.limits import JointLimits
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.types import Chunk, Observation
from vla_accel_ros.sensing.contract import Contract
from vla_accel_ros.sim.controller import ArmControllers
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import Task, tasks
from vla_accel_ros.tools.demo_policy.recipe import CAMERAS

FRAME_S = 1 / 30
CONDITIONS = ("normal", "shuffled", "blank", "still")


@dataclass(frozen=True)
class Timing:
    """In camera frames of 1/30 s: a chunk every `period`, in force `latency` after its image."""

    period: int = 3
    latency: int = 3


@dataclass(frozen=True)
class Episode:
    """How one episode went.

    time_s: until success, or the episode's length. jerk: RMS of the commanded arm joints at 30 Hz [rad/s^3].
    """

    task: str
    family: str
    seed: int
    condition: str
    success: bool
    time_s: float
    jerk: float
    answers_right: int
    answers_asked: int


class Session:
    """An engine and a robot that play episode after episode."""

    def __init__(
        self, engine: Engine, robot: SimRobot, contract: Contract, timing: Timing = Timing()
    ) -> None:
        self.engine, self.robot, self.contract, self.timing = engine, robot, contract, timing
        self.limits = JointLimits.of(contract.joints)

    def play(self, task: Task, seed: int, condition: str = "normal", ask_every: int = 15) -> Episode:
        """Run one episode to success or its time limit. ask_every: frames between two questions."""
        robot, frames = self.robot, round(task.time_limit_s / FRAME_S)
        robot.reset(task, seed)
        instruction = told(task, seed, condition)
        buffer = TrajectoryBuffer(self.contract.joint_names, self.limits)
        buffer.reset(robot.state())
        controller = ArmControllers()
        controller.start(robot.state())
        pending: list[tuple[int, Chunk]] = []
        commands, right, asked = [], 0, 0
        for frame in range(frames):
            now_ns = round(frame * FRAME_S * 1e9)
            if frame % self.timing.period == 0 and condition != "still":
                observation = self.observe(instruction, now_ns, blank=condition == "blank")
                with self.engine.observe(observation) as prefix:
                    pending.append((frame + self.timing.latency, self.engine.act(prefix)))
                    if frame % ask_every == 0:
                        asked += 1
                        right += "".join(self.engine.ask(prefix)).strip() == robot.truth().answer
            while pending and pending[0][0] <= frame:
                trajectory = buffer.update(pending.pop(0)[1], now_ns)
                if trajectory is not None:
                    controller.accept(trajectory, now_ns)
            robot.advance((frame + 1) * FRAME_S, controller)
            commands.append(robot.target[:5])
            if robot.truth().success and task.family != "follow":
                break
        jerk = np.diff(np.array(commands), n=3, axis=0) / FRAME_S**3
        success = robot.truth().success
        rms = float(np.sqrt((jerk**2).mean())) if len(jerk) else 0.0
        return Episode(
            task.instruction,
            task.family,
            seed,
            condition,
            success,
            len(commands) * FRAME_S,
            rms,
            right,
            asked,
        )

    def observe(self, instruction: str, now_ns: int, blank: bool = False) -> Observation:
        """What the robot's cameras and joints say now; blank: grey images instead."""
        images = {image: self.robot.render(camera) for image, camera in CAMERAS.items()}
        if blank:
            images = {image: np.full_like(pixels, 128) for image, pixels in images.items()}
        state = self.contract.to_policy(self.robot.state()).astype(np.float32)
        return Observation(images, state, instruction, now_ns)


def told(task: Task, seed: int, condition: str) -> str:
    """The instruction given: the task's own, or under `shuffled` one of the same family for another block."""
    if condition != "shuffled":
        return task.instruction
    others = [
        other for other in tasks(task.family) if other.block != task.block and other.pad in (None, task.pad)
    ]
    return others[np.random.default_rng(seed).integers(len(others))].instruction
