"""Events within an episode: the target jumps, or the instruction names another block.

Jump and instruction are drawn from the seed, so paired episodes have the same event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.sim import layout
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import Task
from vla_accel_ros.tools.demo_policy.recipe import STEP_DT_S
from vla_accel_ros.tools.demo_policy.rollout import other_blocks


@dataclass(frozen=True)
class MovedTarget:
    """The task's block jumps between two frames, at a time within `between_s` [s].

    distance_m: least and greatest jump. It lands inside the working area, and clear of other blocks and pads
    if there is such a place.
    """

    between_s: tuple[float, float] = (0.3, 0.7)
    distance_m: tuple[float, float] = (0.06, 0.14)

    def frame(self, seed: int) -> int:
        return round(np.random.default_rng((seed, 1)).uniform(*self.between_s) / STEP_DT_S)

    def happen(self, robot: SimRobot, seed: int) -> Task:
        view, task, rng = robot.view(), robot.task, np.random.default_rng((seed, 2))
        block = view.blocks[task.block]
        things = [((b.x, b.y), "block") for name, b in view.blocks.items() if name != task.block]
        things += [(point, "pad") for point in view.pads.values()]
        best, most_room = (block.x, block.y), -math.inf
        for _ in range(500):
            angle, distance = rng.uniform(-math.pi, math.pi), rng.uniform(*self.distance_m)
            point = (block.x + distance * math.cos(angle), block.y + distance * math.sin(angle))
            if not layout.inside(*point):
                continue
            room = min(math.dist(point, xy) - layout.CLEARANCE_M["block", kind] for xy, kind in things)
            if room > most_room:
                best, most_room = point, room
            if room >= 0:
                break
        robot.place_block(task.block, *best, block.yaw)
        robot.set_task(task)
        return task


@dataclass(frozen=True)
class SwitchedTarget:
    """The instruction changes to another block of the same family at `at_s` [s]; the scene stays."""

    at_s: float = 1.0

    def frame(self, seed: int) -> int:
        return round(self.at_s / STEP_DT_S)

    def happen(self, robot: SimRobot, seed: int) -> Task:
        others = other_blocks(robot.task)
        task = others[int(np.random.default_rng((seed, 3)).integers(len(others)))]
        robot.set_task(task)
        return task
