"""The ways to and from a robot in an episode: chunks in shared memory, controllers with another clock, and
the FollowJointTrajectory actions of controllers that have one."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from adversary_messages import Delivered
from adversary_scene import Robot, S

from vla_accel_ros.control.chunking.chunk_record import ChunkWriter
from vla_accel_ros.control.orders.homing import Action, Outcome
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.sensing.chunk_slot import ChunkSlot
from vla_accel_ros.sensing.slot import SlotWriter
from vla_accel_ros.types import Chunk

POLL_HZ = 60
_BYTES = 1 << 17
_OVERDUE_NS = 5 * S
_WAY_S = 0.05
"""How long a goal, its cancellation and its result take at most."""


class Goals:
    """The action of one controller, which does one goal at a time and ends it when a message comes."""

    def __init__(self, way: Ways, joints: tuple[str, ...]) -> None:
        self._way, self._joints = way, joints
        self.outcome: Outcome | None = None
        self._number = self._due_ns = 0
        self._running = self._cancelled = 0  # numbers of goals

    def start(self, trajectory: Trajectory, now_ns: int) -> None:
        """See Action."""
        way, self._number, self.outcome = self._way, self._number + 1, None
        number, length_ns = self._number, trajectory.end_ns - now_ns
        self._due_ns = way.t_ns + length_ns + _OVERDUE_NS
        if way.active("no goals") and way.draw() < 0.5:
            self.outcome = Outcome(False, "no server")
            return

        def arrive() -> None:
            if any(way.active(name) for name in ("no goals", "reactivate", "deaf")):
                self._later(number, Outcome(False, "rejected"))
                return
            self._running = number
            way.execute(trajectory.later(way.t_ns - now_ns), self._joints)
            self._after(length_ns, lambda: self._ended(number, trajectory))
            if self._cancelled >= number:
                self._after(round(way.draw() * _WAY_S * S), lambda: self._brake(number))

        self._after(round(way.draw() * _WAY_S * S), arrive)

    def cancel(self, why: str) -> bool:
        """See Action."""
        if not self._number or self.outcome is not None:
            return False
        number = self._cancelled = self._number
        self.outcome = Outcome(False, why)
        self._after(round(self._way.draw() * _WAY_S * S), lambda: self._brake(number))
        return True

    def poll(self) -> None:
        """See Action."""
        if self._way.t_ns > self._due_ns:
            self.cancel("no result")

    def fail(self) -> None:
        """The controller aborts: a joint has left its path."""
        self._brake(self._running, "aborted")

    def preempt(self) -> None:
        """A message has come instead, or the controller was deactivated."""
        number, self._running = self._running, 0
        self._later(number, Outcome(False, "preempted"))

    def _ended(self, number: int, trajectory: Trajectory) -> None:
        if self._running == number:
            self._running = 0
            where = self._way.where[[self._way.robot.joints.index(name) for name in self._joints]]
            near = np.abs(where - trajectory.positions[-1]).max() < 0.1
            self._later(number, Outcome(near, "reached" if near else "not within its tolerance"))

    def _brake(self, number: int, why: str = "cancelled") -> None:
        if number and self._running == number:
            self._running = 0
            self._way.stand(self._joints)
            self._later(number, Outcome(False, why))

    def _later(self, number: int, outcome: Outcome) -> None:
        def tell() -> None:
            if number and self._number == number and self.outcome is None:
                self.outcome = outcome

        if not self._way.active("no results"):
            self._after(round(self._way.draw() * _WAY_S * S), tell)

    def _after(self, by_ns: int, happen: Callable[[], None]) -> None:
        self._way.later(by_ns, happen)


class Ways(Delivered):
    """With them, for robots of episodes in which their faults may come. goal_ends_ns: when the last goal
    ends, or ended."""

    _goals: dict[tuple[str, ...], Goals]
    _writer: SlotWriter | None = None
    _written: ChunkSlot | None = None
    goal_ends_ns = 0

    def _reached(self, robot: Robot) -> Robot:
        self._apart_ways, self._goals = random.Random(f"ways {self.seed}"), {}
        if not set(self.faults) & set(WAYS):
            return robot
        rng = self._apart_ways
        chunks = rng.choices(("topic", "auto", "slot"), (2, 1, 1))[0]
        stamped = not robot.takes_trajectories or rng.random() < 0.75
        groups = robot.groups or (robot.joints,)
        acting = [group for group in groups if robot.kind == "joint_trajectory" and rng.random() < 0.5]
        actions = {group: f"c{groups.index(group)}/follow" for group in acting}
        return replace(robot, stamped=stamped, chunks_from=chunks, actions=actions)

    def _actions(self) -> dict[str, Action]:
        self._goals = {group: Goals(self, group) for group in self.robot.actions}
        groups = self.robot.groups or (self.robot.joints,)
        return {f"c{groups.index(group)}/joint_trajectory": goals for group, goals in self._goals.items()}

    def _slot(self) -> ChunkSlot | None:
        if self.robot.chunks_from == "topic":
            return None
        names, hz = self.robot.contract.action_names, POLL_HZ
        if not self.robot.takes_trajectories:
            hz = max(hz, round(1.0 / self.robot.period_s))
        if self._written is not None:
            self._written.close()
        most_hz = float(POLL_HZ) if self.robot.takes_trajectories else 0.0
        self._written = ChunkSlot(self._name, names, hz, most_hz, clock=lambda: self.t_ns * 1e-9)
        return self._written

    @property
    def _name(self) -> str:
        return f"adversary.{os.getpid()}"

    def close(self) -> None:
        """Remove the shared memory."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def draw(self) -> float:
        """A random number in [0, 1)."""
        return self._apart_ways.random()

    def later(self, by_ns: int, happen: Callable[[], None]) -> None:
        """Have this happen."""
        self._at(self.t_ns + by_ns, happen)

    def execute(self, trajectory: Trajectory, joints: tuple[str, ...]) -> None:
        """The controller of these joints has accepted a goal."""
        where = self._where(joints)
        self._controller(joints).accept(trajectory, self.t_ns, TrajectoryPoint(self.t_ns, where, 0.0 * where))
        self.goal_ends_ns = max(self.goal_ends_ns, trajectory.end_ns)
        self.began_ns[joints] = self.now_ns()

    def stand(self, joints: tuple[str, ...]) -> None:
        """Their controller holds where it is commanded to be."""
        controller = self._controller(joints)
        controller.hold(controller.state(self.t_ns).position, self.t_ns)
        self.goal_ends_ns = min(self.goal_ends_ns, self.t_ns)
        self.began_ns[joints] = self.now_ns()

    def _preempt(self, joints: tuple[str, ...]) -> None:
        self.goal_ends_ns = min(self.goal_ends_ns, self.t_ns)
        for group, goals in self._goals.items():
            if set(group) & set(joints):
                goals.preempt()

    def _poll(self) -> None:
        self._input("poll", lambda: self.node.poll())

    def _give(self, chunk: Chunk) -> None:
        if self.robot.chunks_from != "topic" and not self.active("slot silent"):
            self._write(chunk)
        if self.robot.chunks_from != "slot" and not self.active("no messages"):
            super()._give(chunk)

    def _write(self, chunk: Chunk) -> None:
        """Write it into shared memory, as the node of inference does."""
        if self.active("slot writer"):
            return
        names, newest_ns = self.robot.contract.action_names, chunk.stamp_ns
        if self._writer is None:
            self._writer = SlotWriter(self._name, _BYTES, 2, lambda: self.t_ns + 1)
        try:
            record = ChunkWriter(names, "/inference").record(chunk, chunk.actions)
        except (struct.error, TypeError, ValueError):
            return  # which no writer can say
        if self.active("slot damaged"):
            record = self._damaged(record)
            newest_ns = self.now_ns() + S
        if len(record) > _BYTES:
            return
        if np.isfinite(chunk.actions).all():
            self.newest_chunk_ns = max(self.newest_chunk_ns, min(newest_ns, self.now_ns() + S // 10))
        self._writer.write(record, chunk.stamp_ns)

    def _damaged(self, record: bytes) -> bytes:
        rng = self._apart_ways
        damaged = bytearray(record[: rng.choice((len(record), rng.randrange(len(record))))])
        for _ in range(rng.choice((0, 1, 20)) if damaged else 0):
            damaged[rng.randrange(min(len(damaged), rng.choice((16, 128, 1 << 20))))] ^= 1 << rng.randrange(8)
        return bytes(damaged)

    def end_writer(self, name: str) -> None:
        """The process that writes the slot ends; another begins later."""
        self.close()
        self._lasts(name, 0.05, 1.5)

    def fail_goals(self, name: str) -> None:
        """Controllers abort their goals."""
        for goals in self._goals.values():
            goals.fail()


def lasting(longest_s: float) -> Callable[[Any, str], None]:
    """A fault that is there for some time."""
    return lambda episode, name: episode._lasts(name, 0.05, longest_s)


WAYS: dict[str, Callable[[Any, str], None]] = {
    "slot silent": lasting(1.0),
    "slot damaged": lasting(0.5),
    "slot writer": Ways.end_writer,
    "no messages": lasting(1.0),
    "no goals": lasting(2.0),
    "no results": lasting(2.0),
    "goal aborted": Ways.fail_goals,
}
