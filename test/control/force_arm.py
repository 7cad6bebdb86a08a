"""An arm with a force sensor, as the trajectory node has it, with time, samples and chunks as a test tells
them. A step is 1 ms; both kinds of controllers, and what they execute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from executed import Broken, TrajectoryController, judge_path, judge_positions
from motion import make_chunk
from world import Clock, Parameters, Process, StreamLine, TrajectoryLine, make_contract, make_joints

from vla_accel_ros.contract.parts import Controller, FollowingError, Joint
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Force, ForceGuard, Reaction
from vla_accel_ros.control.force.sensor import ForceSensor, Quantity
from vla_accel_ros.control.holds import Holds
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint

S, MS = 1_000_000_000, 1_000_000
START = 1000 * S
AXES = ("x", "y", "z")
FREE = (0.0,) * 6
GOAL = np.array([1.5, -1.2, 0.9])
JOINTS = ("a", "b", "gripper")
LIMITS = JointLimits(*np.array([[-2, -2, 0], [2, 2, 1], [3, 3, 4], [20, 20, 40]]).astype(float))

Sample = tuple[tuple[float, ...], int] | None
"""Numbers and a stamp; None: silence."""


def make_sensor(bias: float = 0.0, **changes: object) -> ForceSensor:
    """A wrench at 1 kHz that yields at 10 N, stops at 30 N and is silent for 20 ms at most."""
    force = Quantity("force", "N", AXES, 10.0, 30.0, most=200.0, bias=bias)
    torque = Quantity("torque", "Nm", AXES, 2.0, 5.0, bias=bias / 10.0)
    settings = {"rate_hz": 1000.0, "max_age_s": 0.02, "slot": "wrist", **changes}
    return ForceSensor("wrench", (force, torque), **settings)  # type: ignore[arg-type]


def make_arm(names: tuple[str, ...], limits: JointLimits) -> list[Joint]:
    """Joints that may be 1 rad from where they are commanded, and a gripper anywhere."""
    far = {"gripper": np.inf}
    return [
        replace(joint, following_error=FollowingError(far.get(joint.name, 1.0), 0.2))
        for joint in make_joints(names, limits)
    ]


class Stepped(ABC):
    """A process of the trajectory node, a millisecond at a time. Attribute `reactions`: its guard's."""

    node: Process

    def __init__(self) -> None:
        self.now, self.reactions = START, list[Reaction]()

    def begin(self, node: Process) -> None:
        """Drive this process."""
        self.node = node
        guard = node.robot.outputs.guard
        if guard is not None:
            guard.step = self._noted(guard.step)  # type: ignore[method-assign]
            guard.end_retreat = self._noted(guard.end_retreat)  # type: ignore[method-assign]

    def _noted(self, ask: Callable[[int, int], Reaction | None]) -> Any:
        def asked(now_ns: int, lead_ns: int) -> Reaction | None:
            reaction = ask(now_ns, lead_ns)
            self.reactions += [] if reaction is None else [reaction]
            return reaction

        return asked

    def feel(self, sample: Sample) -> None:
        """A turn of the sensors' thread."""
        force = self.node.motion.force
        assert force is not None
        samples = [] if sample is None else [(sample[1], sample[0])]
        force.reflexes.tick(force.reflexes.feel([samples], [""]))

    @abstractmethod
    def step(self) -> None:
        """A millisecond."""

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds * 1000)):
            self.step()

    def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Let time pass until this is so."""
        for _ in range(round(seconds * 1000)):
            if condition():
                return
            self.step()
        raise AssertionError(f"not within {seconds} s; held by {list(self.held.holds)}")

    def resume(self) -> None:
        self.node.order("resume")

    @property
    def guard(self) -> ForceGuard:
        guard = self.node.robot.outputs.guard
        assert guard is not None
        return guard

    @property
    def held(self) -> Holds:
        return self.node.robot.holds

    @property
    def follower(self) -> ChunkFollower:
        return self.node.robot.follower

    @property
    def running(self) -> bool:
        return self.follower.safety.state is MotionState.RUNNING


class ForceArm(Stepped):
    """streamed: by positions at 1 kHz, else by trajectories. guarded: False leaves the force sensor out.

    sample: asked every millisecond with (now_ns, commanded positions); goal: of the chunks, one every 100 ms,
    50 ms old; None: none. late_ns: how long a trajectory takes to its controller. Attribute `ticks`: of the
    stream.
    """

    def __init__(
        self,
        streamed: bool = True,
        sensor: ForceSensor | None = None,
        retreat: Retreat | None = None,
        joints: tuple[str, ...] = JOINTS,
        limits: JointLimits = LIMITS,
        start: np.ndarray | None = None,
        guarded: bool = True,
    ) -> None:
        super().__init__()
        self.joints, self.limits, self.streamed, self.guarded = joints, limits, streamed, guarded
        self.position = np.array([0.0, 0.0, 0.5]) if start is None else start
        self.controller = TrajectoryController(joints, self.position, from_desired=True)
        self.controller.hold(self.position, self.now)
        self.ticks: list[tuple[int, np.ndarray]] = []
        self.sample: Callable[[int, np.ndarray], Sample] = lambda now, _: (FREE, now)
        self.measure: Callable[[np.ndarray], np.ndarray] = lambda commanded: commanded
        self.goal: np.ndarray | None = None
        self.speed, self.late_ns, self._request = 1.0, 0, 0
        self._delayed: list[tuple[int, Trajectory]] = []
        kind = "forward_command" if streamed else "joint_trajectory"
        force = Force((sensor or make_sensor(),), retreat or Retreat(), ("gripper",)) if guarded else None
        contract = make_contract(kind, make_arm(joints, limits), rate_hz=1000.0, force=force)
        self.begin(Process(contract, Parameters(), Clock(lambda: self.now), self._line))

    def _line(self, controller: Controller) -> StreamLine | TrajectoryLine:
        return StreamLine(self._command) if self.streamed else TrajectoryLine(self._hear)

    def _command(self, position: np.ndarray) -> None:
        self.ticks.append((self.now, position.copy()))

    def _hear(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        self._delayed.append((self.now + self.late_ns, path))
        self._arrive()

    def _arrive(self) -> None:
        while self._delayed and self._delayed[0][0] <= self.now:
            _, path = self._delayed.pop(0)
            self.controller.accept(path, self.now, TrajectoryPoint(self.now, self.commanded))

    @property
    def commanded(self) -> np.ndarray:
        """Where the controllers command the joints to be."""
        if self.streamed:
            return self.ticks[-1][1] if self.ticks else self.position
        return self.controller.state(self.now).position

    @property
    def sent(self) -> int:
        """How much was sent of what the node and the guard decided."""
        return self.node.robot.outputs.sent + len(self.reactions)

    def step(self) -> None:
        self.now += MS
        k = (self.now - START) // MS
        self._arrive()
        if k % 10 == 0:
            self.node.joints(self.joints, self.measure(self.commanded), self.now)
        if not self.node.robot.active:
            return
        if self.guarded:
            self.feel(self.sample(self.now, self.commanded))
        else:
            self.node.tick()
        if k % 100 == 0 and self.goal is not None:
            self._chunk(self.goal)
        if k % 20 == 0:
            self.node.watch()

    def _chunk(self, goal: np.ndarray) -> None:
        self._request += 1
        stamp_ns = self.now - 50 * MS
        begin, _ = self.follower.buffer.reference(stamp_ns)
        steps = np.arange(1, 33)[:, None] / 30.0 * self.speed
        actions = begin + np.clip(goal - begin, -steps, steps)
        self.node.chunk(make_chunk(actions, stamp_ns, 1 / 30, self._request))

    def deactivate(self) -> None:
        self.now += MS
        for _ in self.node.motion.deactivate():
            self.now += MS

    def go(self, goal: np.ndarray) -> None:
        """Chunks towards a goal, from now on; until it runs."""
        self.goal = goal
        self.until(lambda: self.running)

    def broken(self) -> list[Broken]:
        """Limits that what the controllers executed has exceeded."""
        if self.streamed:
            return judge_positions(self.ticks, self.limits, 2e-3)
        times, positions = self.controller.path(self.now)
        return judge_path(times, positions, self.limits, [], [])
