"""The simulated robot: MuJoCo physics, two cameras, and the truth about the scene. No ROS, no wall clock.

Time is simulation time, counted in whole physics steps of 1/480 s, so a camera frame (1/30 s) is exactly 16
steps and two runs with the same seed and commands are identical bit for bit. The scene, including grasps, is
stable up to steps of 1/60 s; the short step is for the controllers, which run at it, as real ones do.
Commands reach the servos at every physics step, either as a ramp (`step`) or sampled from a controller
(`advance`). Pads are only drawings: they move with a reset and touch nothing. With a plate there is something
to touch, and a force sensor in the wrist; physics then runs at half the step, and the sensor at 960 samples a
second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from vla_accel_ros.sim import layout
from vla_accel_ros.sim.rendering import mujoco, open_renderer
from vla_accel_ros.sim.tasks import FOLLOW, Score, Task, Truth, tasks
from vla_accel_ros.sim.world import BLOCK_HALF_M, BLOCKS, PADS, View

SCENE = Path(__file__).with_name("scene.xml")
CAMERAS = ("front", "wrist")
STEP_S = 1 / 480
_SCORE_EVERY = 8  # physics steps: 60 Hz
_WRENCHES = 960
_PLATE_M = (0.09, 0.12, 0.005)
"""Half of each side."""
_PATH_S = 14.0  # of motion; then the block stands still


class Controller(Protocol):
    """Anything that commands the joints; see sim.controller."""

    def commands(self, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Joint positions [M, 6] rad and velocities [M, 6] rad/s due at M simulation times [s]."""


class SimRobot:
    """One arm on its table.

    image_size: (height, width) of both cameras in pixels. plate_m: height of the plate's top over the table
    [m]; None for no plate and no force sensor. It starts in the scene of the first task and seed 0.
    """

    def __init__(self, image_size: tuple[int, int] = (224, 224), plate_m: float | None = None) -> None:
        self.model = _compile(plate_m)
        self.data = mujoco.MjData(self.model)
        self._substeps = round(STEP_S / self.model.opt.timestep)
        self._wrenches: deque[tuple[float, np.ndarray]] = deque(maxlen=_WRENCHES)
        self.image_size = image_size
        self._renderer: mujoco.Renderer | None = None
        self._pad_bodies = [self.model.body(f"pad_{name}").id for name in PADS]
        self.reset(tasks()[0], 0)

    @property
    def time_s(self) -> float:
        """Simulation time since the last reset [s]."""
        return self._ticks * STEP_S

    @property
    def task(self) -> Task:
        """The task that is being scored."""
        return self._score.task

    def reset(self, task: Task | str, seed: int, start: Sequence[float] | None = None) -> None:
        """A new random scene for this task, and time zero.

        seed: decides positions, yaws and the arm's start pose, for this task's family or any other.
        start: six joint angles [rad] to start from instead of a pose near home.
        """
        rng = np.random.default_rng(seed)
        mujoco.mj_resetData(self.model, self.data)
        points = layout.scatter(rng, ("pad",) * len(PADS) + ("block",) * len(BLOCKS))
        self._set_pads(np.array([(x, y, 0.0) for x, y in points[: len(PADS)]]))
        self._ticks = 0
        self._wrenches.clear()
        self._path: tuple[int, str, np.ndarray] | None = None
        for name, (x, y) in zip(BLOCKS, points[len(PADS) :]):
            self.place_block(name, x, y, float(rng.uniform(-math.pi, math.pi)))
        home = layout.home(rng)
        self.set_joints(home if start is None else start)
        self._path_seed = int(rng.integers(2**31))
        self.set_task(task)

    def set_task(self, task: Task | str) -> None:
        """Change the task in the present scene; scoring starts anew, and the block of a follow task starts to
        move."""
        task = Task.parse(task) if isinstance(task, str) else task
        self._score = Score(task, self.time_s)
        self._path = None
        if task.family == FOLLOW:
            blocks = self.view().blocks
            x, y, _, yaw = blocks[task.block]
            obstacles = [(pose.x, pose.y) for name, pose in blocks.items() if name != task.block]
            rng = np.random.default_rng((self._path_seed, self._ticks))
            path = layout.wander(rng, (x, y, yaw), obstacles, _PATH_S, STEP_S)
            self._path = (self._ticks, task.block, path)
        mujoco.mj_fwdPosition(self.model, self.data)

    def set_joints(self, joints: Sequence[float]) -> None:
        """Put the arm at these angles, six [rad], at rest, and command it to stay."""
        six = np.asarray(joints, dtype=float)
        self.data.qpos[:7] = (*six, six[5])
        self.data.qvel[:7] = 0.0
        self._target, self._target_velocity = six.copy(), np.zeros(6)
        self._command(six)

    def place_block(self, name: str, x: float, y: float, yaw: float, z: float = BLOCK_HALF_M) -> None:
        """Put a block here, level and at rest: x, y, z of its centre [m], yaw [rad]."""
        i = BLOCKS.index(name)
        self.data.qpos[7 + 7 * i : 14 + 7 * i] = (x, y, z, math.cos(yaw / 2), 0, 0, math.sin(yaw / 2))
        self.data.qvel[7 + 6 * i : 13 + 6 * i] = 0.0
        if self._path is not None and self._path[1] == name:
            start, _, path = self._path
            self._path = (start, name, path + (np.array((x, y, yaw)) - path[self._path_row()]))

    def step(self, targets: np.ndarray, duration_s: float = 1 / 30) -> None:
        """Ramp the joint command from the last target to `targets` [6] rad over duration_s while physics
        runs."""
        targets = np.asarray(targets, dtype=float)
        steps = max(1, round(duration_s / STEP_S))
        start, velocity = self._target, (targets - self._target) / (steps * STEP_S)
        for i in range(1, steps + 1):
            self._command(start + velocity * (i * STEP_S))
            self._tick()
        self._target, self._target_velocity = targets.copy(), velocity

    def advance(self, to_time_s: float, controller: Controller) -> None:
        """Run physics to to_time_s; at every physics step the controller's command of that instant is
        applied."""
        steps = np.arange(self._ticks, round(to_time_s / STEP_S))
        if not len(steps):
            return
        positions, velocities = controller.commands(steps * STEP_S)
        for position in positions:
            self._command(position)
            self._tick()
        self._target, self._target_velocity = positions[-1].copy(), velocities[-1].copy()

    def _command(self, joints: np.ndarray) -> None:
        self.data.ctrl[:6] = joints
        self.data.ctrl[6] = joints[5]

    def _path_row(self) -> int:
        assert self._path is not None
        return min(self._ticks - self._path[0], len(self._path[2]) - 1)

    def _tick(self) -> None:
        if self._path is not None:
            _, name, path = self._path
            i, row = BLOCKS.index(name), self._path_row()
            x, y, yaw = path[row]
            vx, vy, spin = (path[min(row + 1, len(path) - 1)] - path[row]) / STEP_S
            q = self.data.qpos[7 + 7 * i : 14 + 7 * i]
            q[0], q[1], q[3:] = x, y, (math.cos(yaw / 2), 0, 0, math.sin(yaw / 2))
            self.data.qvel[7 + 6 * i : 13 + 6 * i] = (vx, vy, 0, 0, 0, spin)
        for i in range(self._substeps):
            mujoco.mj_step(self.model, self.data)
            if self._substeps > 1:
                at_s = self.time_s + (i + 1) * STEP_S / self._substeps
                self._wrenches.append((at_s, self.data.sensordata[:6].copy()))
        self._ticks += 1
        if self._ticks % _SCORE_EVERY == 0:
            self._score.update(self.time_s, self.view())

    def wrenches(self) -> list[tuple[float, np.ndarray]]:
        """The force sensor's samples since the last call, at most those of the last second: time [s], and
        force [N] and torque [Nm], float64 [6], on the hand, in the frame of the hand. Empty without a
        plate."""
        wrenches = list(self._wrenches)
        self._wrenches.clear()
        return wrenches

    def state(self) -> np.ndarray:
        """Joint positions, float32 [6] rad, in kinematics.JOINTS order; the gripper's is the mean of its two
        fingers."""
        q = self.data.qpos
        return np.array((*q[:5], 0.5 * (q[5] + q[6])), dtype=np.float32)

    def velocity(self) -> np.ndarray:
        """Joint velocities, float32 [6] rad/s."""
        v = self.data.qvel
        return np.array((*v[:5], 0.5 * (v[5] + v[6])), dtype=np.float32)

    @property
    def target(self) -> np.ndarray:
        """The last commanded joint positions, float64 [6] rad."""
        return self._target.copy()

    @property
    def target_velocity(self) -> np.ndarray:
        """The rate of the last commanded joint positions, float64 [6] rad/s."""
        return self._target_velocity.copy()

    @property
    def pads(self) -> dict[str, tuple[float, float]]:
        """Pad colour -> (x, y) of its centre [m]."""
        return dict(self._pads)

    def _set_pads(self, positions: np.ndarray) -> None:
        self.model.body_pos[self._pad_bodies] = positions
        self._pads = {name: (x, y) for name, (x, y, _) in zip(PADS, positions.tolist())}

    def view(self) -> View:
        """The scene at this instant."""
        return View.from_qpos(self.data.qpos.tolist(), self._pads)

    def truth(self) -> Truth:
        """Ground truth for scoring."""
        view = self.view()
        return Truth(self.time_s, view, self.task, view.held, self._score.success, self.task.answer(view))

    def render(self, camera: str) -> np.ndarray:
        """Image of `front` or `wrist`, uint8 [H, W, 3] RGB, a copy. Raises rendering.NoRenderer without
        OpenGL."""
        if self._renderer is None:
            self._renderer = open_renderer(self.model, *self.image_size)
        mujoco.mj_fwdPosition(self.model, self.data)
        self._renderer.update_scene(self.data, camera)
        return self._renderer.render()

    def project(self, x: float, y: float, z: float) -> tuple[float, float]:
        """Position of a point of the base frame [m] in the front image: (u right, v down), 0..1 inside the
        image."""
        camera = self.model.camera("front")
        ahead = self.data.cam("front").xmat.reshape(3, 3).T @ (np.array((x, y, z)) - camera.pos)
        scale = 1 / (2 * math.tan(math.radians(float(camera.fovy[0])) / 2) * -ahead[2])
        height, width = self.image_size
        return float(0.5 + ahead[0] * scale * height / width), float(0.5 - ahead[1] * scale)

    def close(self) -> None:
        """Free the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def _compile(plate_m: float | None) -> mujoco.MjModel:
    """The scene; with a plate at this height and a force sensor unless plate_m is None."""
    if plate_m is None:
        return mujoco.MjModel.from_xml_path(str(SCENE))
    spec = mujoco.MjSpec.from_file(str(SCENE))
    spec.worldbody.add_geom(
        name="plate",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=_PLATE_M,
        pos=(0.2, 0.0, plate_m - _PLATE_M[2]),
        rgba=(0.75, 0.55, 0.35, 1.0),
    )
    spec.body("gripper").add_site(name="wrist_ft", pos=(0.0, 0.0, 0.0))
    for name, kind in (("force", mujoco.mjtSensor.mjSENS_FORCE), ("torque", mujoco.mjtSensor.mjSENS_TORQUE)):
        spec.add_sensor(name=name, type=kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname="wrist_ft")
    spec.option.timestep = STEP_S / 2
    return spec.compile()
