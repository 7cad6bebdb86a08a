"""All controllers of a robot together: what the motion sends to.

A robot that is commanded at a rate would stop abruptly if its process just ended. So `close` sends the last
stop to its end, to all controllers in step. With a force sensor a second thread makes the ticks and may send
something else at any time. Then every call of an output is made under one lock, and the guard must agree to
what is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.contract import Contract
from vla_accel_ros.control.force.guard import ForceGuard, Reaction
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.output import Clock, Output, by_name
from vla_accel_ros.control.trajectory import Trajectory

# What still moves then is far behind its path, and brakes where it is.
_BEHIND_S = 0.6
# After LONGEST_S (nodes/running/shutdown.py) a process that was asked to end is killed.
_LONGEST_STOP_S = 3.5


class Outputs:
    """The outputs of a robot, one for each controller.

    joints: names of all the robot's joints; moved: of those that chunks move. least_s: lower bound of
    `lead_s`. guard: of the force sensors, None without. lock: held by every call of an output, for
    microseconds. Attribute `sent`: number of trajectories that were sent.
    """

    @classmethod
    def of(
        cls,
        contract: Contract,
        outputs: Sequence[Output],
        clock: Clock,
        least_s: float,
        twists: Sequence[TwistBuffer] = (),
        lock: AbstractContextManager[object] | None = None,
    ) -> Outputs:
        """The outputs of a contract's controllers. twists: of a hand and a base. lock: used with a force
        sensor only."""
        joints = contract.action_joints
        names = tuple(joint.name for joint in joints)
        guard = None
        if contract.force is not None:
            streamed = {name for c in contract.controllers if c.rate_hz for name in c.joints}
            columns = np.array([name in streamed for name in names], dtype=bool)
            guard = ForceGuard(contract.force, names, JointLimits.of(joints), columns, twists)
        return cls(contract.joint_names, names, outputs, clock, least_s, guard, lock if guard else None)

    def __init__(
        self,
        joints: tuple[str, ...],
        moved: tuple[str, ...],
        outputs: Sequence[Output],
        clock: Clock,
        least_s: float,
        guard: ForceGuard | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._joints, self._moved, self._outputs = joints, moved, list(outputs)
        self._clock, self._least_s = clock, least_s
        self.guard, self.lock = guard, nullcontext() if lock is None else lock
        self.streams = [output for output in self._outputs if output.controller.rate_hz]
        self.sent = 0

    def __iter__(self) -> Iterator[Output]:
        return iter(self._outputs)

    def send(self, trajectory: Trajectory | None, decided_ns: int) -> None:
        """Follow this trajectory, which was decided at decided_ns, from now on; None changes nothing."""
        if trajectory is None:
            return
        with self.lock:
            if self.guard is not None and not self.guard.follow(trajectory):
                return  # decided before a contact stopped the arm
            self.sent += 1
            for output in self._outputs:
                output.send(trajectory, decided_ns)

    def react(self, reaction: Reaction) -> None:
        """Follow this reaction to a contact from now on."""
        with self.lock:
            now_ns = self._clock.now_ns()
            for output in self._outputs:
                streamed = output.controller.rate_hz > 0.0
                output.send(reaction.streamed if streamed else reaction.sent, now_ns)

    def measured(self, positions: np.ndarray, stamps_ns: np.ndarray, believed: bool) -> None:
        """Take measured joints, float64 [D] in the robot's order, and their stamps, int64 [D]; see
        Output.measured."""
        named, stamps = by_name(self._joints, positions), dict(zip(self._joints, stamps_ns.tolist()))
        with self.lock:
            for output in self._outputs:
                output.measured(named, stamps, believed)

    def reference(self) -> np.ndarray:
        """The setpoint that controllers report of the joints that chunks move, float64 [D], NaN where they
        report nothing."""
        now_ns = self._clock.now_ns()
        with self.lock:
            return self._positions(output.reference(now_ns) for output in self._outputs)

    def commanded(self, t_ns: int) -> np.ndarray:
        """Commanded positions of the joints that chunks move at a time, by the trajectories sent before,
        float64 [D], NaN where that equals the decided motion."""
        with self.lock:
            return self._positions(output.commanded(t_ns) for output in self._outputs)

    def rests_ns(self) -> int:
        """When the last controller comes to rest, if trajectories were sent later than they were decided,
        else 0."""
        with self.lock:
            return max((output.rests_ns() for output in self._outputs), default=0)

    def poll_refusal(self) -> str:
        """See Output.poll_refusal."""
        with self.lock:
            return "; ".join(filter(None, [output.poll_refusal() for output in self._outputs]))

    def at_rest(self) -> bool:
        """Whether all streams of commands have come to their end."""
        now_ns = self._clock.now_ns()
        with self.lock:
            return all(output.at_rest(now_ns) for output in self._outputs)

    def begin(self) -> None:
        """Send nothing until the next trajectory."""
        with self.lock:
            for output in self._outputs:
                output.begin()

    def stop(self, braking: Trajectory | None) -> list[Trajectory]:
        """Come to rest, because the clock has jumped. braking: see Output.stop. Returns what the controllers
        execute until they rest: first `braking`, then the different ones, which override it."""
        now_ns = self._clock.now_ns()
        with self.lock:
            stops = [braking, *(output.stop(braking, now_ns) for output in self._outputs)]
        return [stop for stop in stops if stop is not None]

    def open(self) -> list[str]:
        """Prepare the controllers, without the lock: they may be asked. Returns one sentence for each thing
        that failed."""
        return [
            f"{output.controller.topic}: {failure}" for output in self._outputs for failure in output.open()
        ]

    def lead_s(self) -> float:
        """How long to keep the old motion, until the slowest controller has the new one."""
        now_ns = self._clock.now_ns()
        with self.lock:
            return max([self._least_s, *(output.lead_s(now_ns) for output in self._outputs)])

    @property
    def trouble(self) -> str:
        """Which deliveries take longer than allowed; empty if none does."""
        with self.lock:
            troubles = [(output.controller.topic, output.trouble) for output in self._outputs]
        return "; ".join(f"{topic}: {trouble}" for topic, trouble in troubles if trouble)

    @property
    def waits(self) -> bool:
        """Whether a controller is about to report its setpoint; no motion begins before."""
        with self.lock:
            return any(output.waits for output in self._outputs)

    @property
    def awaits_arrival(self) -> bool:
        """Whether chunks should wait for a moment, until what was sent has arrived."""
        with self.lock:
            return any(output.awaits_arrival for output in self._outputs)

    @property
    def hindrances(self) -> dict[str, Sequence[str]]:
        """Why controllers would not execute trajectories as they are meant -> what that follows from
        (Safety.hold): nobody listens to the controller's topic."""
        with self.lock:
            sentences = [output.hindrance for output in self._outputs]
        return {hindrance: (f"controllers[{i}].topic",) for i, hindrance in enumerate(sentences) if hindrance}

    def rest(self) -> None:
        """The robot is at rest, and held."""
        with self.lock:
            for output in self._outputs:
                output.rest()

    def close(self) -> Iterator[float]:
        """Send the last stop to its end, and leave the controllers alone. Yields the seconds to wait before
        it goes on."""
        self.rest()
        now_ns = first_ns = self._clock.now_ns()
        began_ns = self._clock.monotonic_ns()
        period_s = 1.0 / max((output.controller.rate_hz for output in self.streams), default=1.0)
        passed_ns, brakes, rests = 0, False, self._streams_rest(now_ns)
        while passed_ns < _LONGEST_STOP_S * 1e9 and not rests:
            with self.lock:
                if passed_ns >= _BEHIND_S * 1e9 and not brakes:
                    brakes = True
                    for output in self.streams:
                        output.stop(None, now_ns)
                for output in self.streams:
                    output.tick(now_ns)
            rests = self._streams_rest(now_ns)
            yield period_s
            passed_ns = self._clock.monotonic_ns() - began_ns
            # /clock is not received in this loop, and simulated time may stand still
            now_ns = first_ns + passed_ns if self._clock.simulated else self._clock.now_ns()
        for output in self._outputs:
            with self.lock:
                output.close()

    def _streams_rest(self, now_ns: int) -> bool:
        with self.lock:
            return all(output.at_rest(now_ns) for output in self.streams)

    def _positions(self, reports: Iterable[Mapping[str, float]]) -> np.ndarray:
        positions = dict[str, float]()
        for report in reports:
            positions.update(report)
        return np.array([positions.get(name, np.nan) for name in self._moved])
