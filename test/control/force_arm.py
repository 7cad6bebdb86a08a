"""An arm with a force sensor, as the trajectory node composes it, with time, samples and chunks as a test
tells them. A step is 1 ms; both kinds of controllers, and what they execute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.command_stream import CommandStream
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.watchdog import MotionState, Safety, Watchdog
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Force, ForceGuard, Reaction
from vla_accel_ros.control.force.sensor import ForceSensor, Quantity
from vla_accel_ros.control.force.taking_over import TakingOver
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.sim.executed import Broken, TrajectoryController, judge_path, judge_positions
from vla_accel_ros.types import Chunk

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


class Held:
    """What holds the robot, without a state file."""

    def __init__(self) -> None:
        self.holds, self.faults, self.passing = dict[str, None](), dict[str, None](), set[str]()
        self.lent = False

    def hold(self, reason: str, passing: bool = False) -> None:
        self.holds[reason] = None
        self.follower.safety.hold(reason)
        if passing:
            self.passing.add(reason)

    def resume(self, reason: str) -> None:
        if self.holds.pop(reason, 0) is None:
            self.follower.safety.resume(reason)
            self.passing.discard(reason)

    def fault(self, sentence: str) -> None:
        self.faults[sentence] = None
        self.hold(sentence)

    def over(self, follower: ChunkFollower) -> None:
        self.follower = follower


class Stepped(ABC):
    """What a robot of these tests does in time, a millisecond at a time."""

    held: Held

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


class ForceArm(Stepped):
    """streamed: by positions at 1 kHz, else by trajectories. guarded: False leaves the force sensor out.

    sample: asked every millisecond with (now_ns, commanded positions); goal: of the chunks, one every 100 ms,
    `latency_s` old; None: none. Attributes: `sent`, what left the node, `reactions`, `ticks` of the stream.
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
        self.joints, self.limits, self.streamed, self.guarded = joints, limits, streamed, guarded
        self.now = START
        self.position = np.array([0.0, 0.0, 0.5]) if start is None else start
        watched = {"joint_states": 0.3, "chunk": 0.8}
        far = np.array([np.inf if name == "gripper" else 1.0 for name in joints])
        self.follower = ChunkFollower(
            TrajectoryBuffer(joints, limits, max_age_s=0.8),
            Safety(Watchdog(watched)),
            0.8,
            following=FollowingError(far, np.full(len(joints), 0.2)),
        )
        streams = np.full(len(joints), streamed)
        force = Force((sensor or make_sensor(),), retreat or Retreat(), ("gripper",))
        self.guard = ForceGuard(force, joints, limits, streams)
        self.held = Held()
        self.held.over(self.follower)
        self.taking = TakingOver(self.guard, self.held, nullcontext(), self.react)
        self.taking.begin(self.follower)
        self.stream = CommandStream(joints, limits, 1e-3)
        self.controller = TrajectoryController(joints, self.position, from_desired=True)
        self.controller.hold(self.position, self.now)
        self.ticks: list[tuple[int, np.ndarray]] = []
        self.reactions: list[Reaction] = []
        self.sent: list[Trajectory] = []
        self.states: Counter[MotionState] = Counter()
        self.sample: Callable[[int, np.ndarray], Sample] = lambda now, _: (FREE, now)
        self.goal: np.ndarray | None = None
        self.speed = 1.0
        self.latency_s, self.late_ns = 0.05, 0
        self.delayed: list[tuple[int, Trajectory]] = []
        self.measure: Callable[[np.ndarray], np.ndarray] = lambda commanded: commanded
        self._request = 0

    @property
    def commanded(self) -> np.ndarray:
        """Where the controllers command the joints to be."""
        if self.streamed:
            return self.ticks[-1][1] if self.ticks else self.position
        return self.controller.state(self.now).position

    @property
    def running(self) -> bool:
        return self.follower.safety.state is MotionState.RUNNING

    def step(self) -> None:
        """A millisecond."""
        self.now += MS
        k = (self.now - START) // MS
        while self.delayed and self.delayed[0][0] <= self.now:
            _, path = self.delayed.pop(0)
            self.controller.accept(path, self.now, TrajectoryPoint(self.now, self.commanded))
        if k % 10 == 0:
            self.follower.measured(self.measure(self.commanded), self.now, self.now)
        if self.guarded:
            self._sense()
        if self.streamed:
            state = self.stream.tick(self.now)
            if state is not None:
                self.ticks.append((self.now, state.position))
        if k % 100 == 0 and self.goal is not None:
            self._chunk()
        if k % 20 == 0:
            self._watch()

    def _sense(self) -> None:
        sample = self.sample(self.now, self.commanded)
        if sample is not None:
            self.guard.take(0, *sample, self.now)
        reaction = self.guard.step(self.now, round(self.follower.buffer.kept_s * 1e9))
        if reaction is not None:
            self.react(reaction)

    def _watch(self) -> None:
        if self.guarded:
            self.taking.adopt(self.now)
        _, path = self.follower.step(self.now)
        self.send(path)
        if self.guarded:
            self.taking.watch(self.now)
        self.states[self.follower.safety.state] += 1

    def _chunk(self) -> None:
        assert self.goal is not None
        self._request += 1
        if self.guarded:
            self.taking.adopt(self.now)
        stamp_ns = self.now - round(self.latency_s * S)
        begin, _ = self.follower.buffer.reference(stamp_ns)
        way = self.goal - begin
        steps = np.arange(1, 33)[:, None] / 30.0 * self.speed
        actions = begin + np.clip(way, -steps, steps)
        chunk = Chunk(
            actions.astype(np.float32),
            stamp_ns,
            1 / 30,
            self._request,
            self._request,
            np.zeros(32, np.float32),
        )
        self.send(self.follower.follow(chunk, self.now))

    def send(self, path: Trajectory | None) -> None:
        """What the node decided."""
        if path is not None and (not self.guarded or self.guard.follow(path)):
            self._deliver(path, path)

    def react(self, reaction: Reaction) -> None:
        """What the guard decided."""
        self.reactions.append(reaction)
        self._deliver(reaction.streamed, reaction.sent)

    def _deliver(self, streamed: Trajectory, sent: Trajectory) -> None:
        self.sent.append(streamed if self.streamed else sent)
        if self.streamed:
            self.stream.follow(streamed, self.now)
        else:
            self.delayed.append((self.now + self.late_ns, sent))
            if not self.late_ns:
                self.delayed.pop()
                self.controller.accept(sent, self.now, TrajectoryPoint(self.now, self.commanded))

    def resume(self) -> None:
        """~/resume."""
        for reason in [h for h in self.held.holds if h not in self.held.passing]:
            self.held.resume(reason)
        self.follower.resume()
        self.taking.forgive()
        self.held.faults.clear()

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
