"""Visited states and what the expert would do from each: the training data of the demo's policy.

Labels come from the expert, whoever drove to the state (DAgger, Ross et al. 2011): the expert disturbed by
smooth noise, pauses, pushed blocks, dropped blocks and changed instructions, or a learned policy given as
`behaviour`. Episodes start anywhere, also in the middle of a task. Few samples are kept of each episode,
since different scenes teach more than neighbouring frames. Everything is a function of the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from training.expert import STEP_DT_S, Expert
from vla_accel_ros.sim import kinematics, layout
from vla_accel_ros.sim.kinematics import GRIPPER_AT_BLOCK, GRIPPER_CLOSED, GRIPPER_OPEN
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import FAMILIES, FOLLOW, PLACE, REACH, Task, tasks
from vla_accel_ros.sim.world import View

HORIZON = 32
SHARES = {REACH: 0.25, PLACE: 0.5, FOLLOW: 0.25}
"""Of the episodes: `place` is the longest and hardest."""
EPISODE_S = {REACH: 2.4, PLACE: 7.0, FOLLOW: 5.0}
REACHED_M = (0.12, 0.31)  # radii at which the gripper can point down from 1 to 15 cm above the table
LINGER_S = 0.6  # an episode goes on this long after success, so that "done" is seen

Behaviour = Callable[[SimRobot, Expert], np.ndarray]
"""Drives: called once per 1/30 s, returns the joint target [6] rad due at its end; may also disturb the
scene."""


@dataclass(frozen=True)
class Sample:
    """One visited state and its labels.

    front, wrist: uint8 [H, W, 3] RGB.
    state: float32 [6] rad. chunk: float32 [32, 6], the expert's absolute joint targets, the first due 1/30 s
        later.
    target_uv, goal_uv: float32 [2], centre of the task's block and of its goal (pad, else block) in the front
        image, 0..1 from the top left.
    phase: approach, near (the tip is within 4 cm over the block), carry or done.
    """

    front: np.ndarray
    wrist: np.ndarray
    state: np.ndarray
    chunk: np.ndarray
    instruction: str
    answer: str
    target_uv: np.ndarray
    goal_uv: np.ndarray
    family: str
    phase: str
    seed: int


def draw_task(rng: np.random.Generator, families: Sequence[str] = FAMILIES) -> Task:
    """A random task of these families, by their shares."""
    shares = np.array([SHARES[family] for family in families])
    family = str(rng.choice(families, p=shares / shares.sum()))
    choices = tasks(family)
    return choices[int(rng.integers(len(choices)))]


def phase(task: Task, view: View) -> str:
    """The present phase of the task; see Sample."""
    if view.held == task.block:
        return "carry"
    if task.done(view):
        return "done"
    return "near" if view.ready_offset(task.block)[0] < 0.04 else "approach"


def observe(robot: SimRobot, expert: Expert, seed: int) -> Sample:
    """The present state of the robot with its labels."""
    view, task = robot.view(), robot.task
    block = view.blocks[task.block]
    target = np.array(robot.project(block.x, block.y, block.z), dtype=np.float32)
    goal = (
        target if task.pad is None else np.array(robot.project(*view.pads[task.pad], 0.0), dtype=np.float32)
    )
    return Sample(
        front=robot.render("front"),
        wrist=robot.render("wrist"),
        state=robot.state(),
        chunk=expert.chunk(HORIZON),
        instruction=task.instruction,
        answer=task.answer(view),
        target_uv=target,
        goal_uv=goal,
        family=task.family,
        phase=phase(task, view),
        seed=seed,
    )


@dataclass
class Disturbed:
    """The expert with disturbances: the default behaviour. Make a new one for each episode.

    Amplitudes are drawn per episode; about a quarter of the episodes are undisturbed.
    """

    rng: np.random.Generator
    families: Sequence[str] = FAMILIES
    noise_rad: float = field(init=False)
    _frame: int = field(default=0, init=False)
    _pause: int = field(default=0, init=False)
    _open: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        clean = self.rng.random() < 0.25
        self.noise_rad = 0.0 if clean else min(0.1, float(self.rng.exponential(0.03)))
        self._risk = 0.0 if clean else 1 / 60  # of each event, per frame
        self._knots = self.rng.normal(size=(64, 6)) * (1, 1, 1, 1, 2, 1)
        self._offset = np.zeros(6)

    def __call__(self, robot: SimRobot, expert: Expert) -> np.ndarray:
        self.events(robot)
        command = expert.act()
        self._pause, self._open, self._frame = self._pause - 1, self._open - 1, self._frame + 1
        if self._pause > 0:
            return robot.target
        previous, self._offset = self._offset, self._noise()
        command = command + self._offset - previous
        if self._open > 0:
            command[5] = min(robot.target[5] + 0.1, GRIPPER_OPEN)
        return np.clip(command, kinematics.LOWER, kinematics.UPPER)

    def _noise(self) -> np.ndarray:
        """Smooth noise [6] rad: a cosine between random knots every 0.3 s."""
        knot, part = divmod(self._frame, 9)
        weight = 0.5 - 0.5 * math.cos(math.pi * part / 9)
        a, b = self._knots[knot % 64], self._knots[(knot + 1) % 64]
        return self.noise_rad * ((1 - weight) * a + weight * b)

    def events(self, robot: SimRobot) -> None:
        """Maybe push or drop the block, pause, or change the instruction. Other behaviours may call it
        too."""
        pause, push, drop, change = self.rng.random(4) < self._risk * np.array((0.5, 0.8, 0.5, 0.35))
        view = robot.view()
        if pause:
            self._pause = int(self.rng.integers(5, 15))
        if push and view.held is None:
            push_block(robot, robot.task.block, self.rng)
        if drop and view.held is not None:
            self._open = int(self.rng.integers(5, 12))
        if change:
            robot.set_task(draw_task(self.rng, self.families))


def push_block(robot: SimRobot, name: str, rng: np.random.Generator) -> None:
    """Move a block 2-12 cm to a free place at once; it stays if none is found."""
    view = robot.view()
    block, tip = view.blocks[name], view.tip
    for _ in range(20):
        far, way = rng.uniform(0.02, 0.12), rng.uniform(-math.pi, math.pi)
        x, y = block.x + far * math.cos(way), block.y + far * math.sin(way)
        obstacles = [(pose.x, pose.y) for other, pose in view.blocks.items() if other != name]
        clear = all(math.dist((x, y), other) > 0.07 for other in obstacles)
        under_hand = tip.z < 0.075 and math.hypot(x - tip.x, y - tip.y) < 0.075
        if layout.inside(x, y) and clear and not under_hand:
            robot.place_block(name, x, y, block.yaw + float(rng.normal(0, 0.4)))
            return


def anywhere_above(rng: np.random.Generator) -> tuple[float, ...]:
    """Six joint angles [rad] with the tip anywhere over the working area, 5-16 cm up, gripper at any
    opening."""
    opening = GRIPPER_OPEN if rng.random() < 0.7 else float(rng.uniform(0.15, 0.7))
    while True:
        x, y = layout.anywhere(rng)
        z, pitch, roll = rng.uniform(0.055, 0.16), rng.normal(0, 0.06), rng.uniform(-0.8, 0.8)
        with suppress(kinematics.Unreachable):
            return (*kinematics.inverse(kinematics.Pose(x, y, float(z), float(pitch), float(roll))), opening)


def start_somewhere(robot: SimRobot, rng: np.random.Generator) -> None:
    """Put the freshly reset robot at home, anywhere, near its block, or (place) in mid-carry or just
    finished."""
    kind = rng.choice(("home", "anywhere", "near", "carry", "finished"), p=(0.42, 0.23, 0.15, 0.15, 0.05))
    task, view = robot.task, robot.view()
    if kind in ("carry", "finished") and task.family != PLACE:
        kind = "near"
    if kind == "anywhere":
        robot.set_joints(anywhere_above(rng))
    elif kind == "near":
        block = view.blocks[task.block]
        x, y = _beside((block.x, block.y), 0.025, rng)
        roll = float(np.clip(math.atan2(block.y, block.x) - block.yaw + rng.normal(0, 0.3), -1.2, 1.2))
        pose = kinematics.Pose(x, y, float(rng.uniform(0.06, 0.11)), 0.0, roll)
        robot.set_joints((*kinematics.inverse(pose), GRIPPER_OPEN))
    elif kind == "carry":
        _start_carrying(robot, rng)
    elif kind == "finished":
        assert task.pad is not None
        x, y = _beside(view.pads[task.pad], 0.012, rng)
        roll, height = float(rng.uniform(-0.8, 0.8)), float(rng.uniform(0.07, 0.15))
        robot.place_block(task.block, x, y, float(rng.uniform(-0.7, 0.7)))
        robot.set_joints((*kinematics.inverse(kinematics.Pose(x, y, height, 0.0, roll)), GRIPPER_OPEN))


def _beside(point: tuple[float, float], spread_m: float, rng: np.random.Generator) -> tuple[float, float]:
    """A point near this one that the arm reaches at every height used here."""
    x, y = np.array(point) + rng.normal(0, spread_m, 2)
    radius = math.hypot(x, y)
    scale = min(max(radius, REACHED_M[0]), REACHED_M[1]) / radius
    return float(x * scale), float(y * scale)


def _start_carrying(robot: SimRobot, rng: np.random.Generator) -> None:
    """Put the task's block between closed fingers, anywhere from just grasped to over its pad."""
    task, view = robot.task, robot.view()
    assert task.pad is not None
    if rng.random() < 0.4:
        x, y = _beside(view.pads[task.pad], 0.02, rng)
        z = float(rng.uniform(0.012, 0.09))
    else:
        x, y = layout.anywhere(rng)
        z = float(rng.uniform(0.065, 0.11))
    roll = float(rng.uniform(-0.8, 0.8))
    arm = kinematics.inverse(kinematics.Pose(x, y, z, 0.0, roll))
    robot.set_joints((*arm, GRIPPER_AT_BLOCK))
    robot.place_block(task.block, x, y, arm[0] - roll, max(0.0201, z + 0.008))
    for _ in range(5):
        robot.step(np.array((*arm, GRIPPER_CLOSED)))


def record_episode(
    task: Task,
    seed: int,
    behaviour: Behaviour | None = None,
    every: int = 14,
    *,
    robot: SimRobot | None = None,
    expert: Expert | None = None,
    start: Callable[[SimRobot, np.random.Generator], None] = start_somewhere,
    families: Sequence[str] = FAMILIES,
) -> list[Sample]:
    """Samples of one episode, on average one in `every` frames of 1/30 s, twice as many close to the block.

    behaviour: the driver; the disturbed expert if None, whose instruction changes to others of `families`.
    The labels are always the expert's. robot, expert: reused if given; making them takes longer than an
    episode.
    """
    rng = np.random.default_rng((seed, 0x5EED))
    robot = SimRobot() if robot is None else robot
    expert = Expert(robot) if expert is None else expert
    drive = Disturbed(rng, families) if behaviour is None else behaviour
    robot.reset(task, seed)
    start(robot, rng)
    robot.set_task(task)
    expert.reset()
    samples: list[Sample] = []
    end_s, begun_s = robot.time_s + EPISODE_S[task.family], robot.time_s
    success_s = math.inf
    while robot.time_s < min(end_s, success_s + LINGER_S):
        near = phase(robot.task, robot.view()) in ("near", "carry")
        if robot.time_s == begun_s or rng.random() < (2.0 if near else 1.0) / every:
            samples.append(observe(robot, expert, seed))
        robot.step(drive(robot, expert), STEP_DT_S)
        if robot.truth().success and robot.task.family != FOLLOW:
            success_s = min(success_s, robot.time_s)
    return samples
