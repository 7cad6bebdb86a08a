"""MoveIt Servo: velocities at a fixed rate, of the joints or of the hand.

Servo moves the controller itself, smooths, avoids collisions and singularities, and halts by itself when
commands are older than its timeout. It can be paused: it is while the robot is held or driven by others, and
continues with the first motion.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.command_stream import JogStream
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.base import OfTwists
from vla_accel_ros.control.outputs.output import Clock, Controller, Output, by_name, steady_ns
from vla_accel_ros.control.trajectory import Trajectory

# Number of zero commands before the pause, so that a lost one does not matter.
_ZEROS = 4


class ServoChannel(Protocol):
    """The topic and the services of Servo."""

    def open(self) -> list[str]:
        """Tell Servo the type of its commands, and pause it; returns a sentence for each thing that
        failed."""
        ...

    def publish(self, command: np.ndarray, now_ns: int) -> None:
        """Publish one velocity, float64 [D], stamped with the present."""
        ...

    def pause(self, paused: bool) -> None:
        """Ask Servo to pause, or to go on; does not wait for its answer."""
        ...

    def close(self, pause: bool) -> None:
        """Return when everything sent has arrived, and Servo is paused if that is asked."""
        ...


class ServoOutput(Output):
    """The common part of both kinds."""

    def __init__(self, controller: Controller, channel: ServoChannel, clock: Clock) -> None:
        super().__init__(controller)
        self._channel, self._clock = channel, clock
        self._paused, self._resting, self._zeros = True, False, 0
        self._lent = True  # others may use Servo

    def begin(self) -> None:
        self._forget()
        self._pause(True)
        self._lent = True

    def rest(self) -> None:
        self._resting, self._zeros = True, 0

    def tick(self, now_ns: int) -> None:
        velocity = self._next(now_ns)
        if velocity is None or (self._paused and self._resting):
            return
        if self._paused:
            self._pause(False)
        self._lent = False
        self._channel.publish(self._command(velocity), now_ns)
        self._zeros = 0 if velocity.any() else self._zeros + 1
        if self._resting and self._zeros >= _ZEROS:
            self._pause(True)

    def open(self) -> list[str]:
        self._lent, missing = False, self._channel.open()
        self._paused = True
        return missing

    def close(self) -> None:
        self._paused = True
        self._channel.close(pause=not self._lent)

    def _command(self, velocity: np.ndarray) -> np.ndarray:
        """What is sent for these velocities."""
        return velocity

    def _pause(self, paused: bool) -> None:
        if self._paused != paused:
            self._paused = paused
            self._channel.pause(paused)

    @abstractmethod
    def _next(self, now_ns: int) -> np.ndarray | None:
        """The velocities to command now; None for no command."""

    @abstractmethod
    def _forget(self) -> None:
        """Command nothing until the next motion."""


class JointVelocityOutput(ServoOutput):
    """Joint velocities. limits: of the controller's joints, in its order. gain: see JogStream."""

    def __init__(
        self, controller: Controller, limits: JointLimits, gain: float, channel: ServoChannel, clock: Clock
    ) -> None:
        super().__init__(controller, channel, clock)
        self._jog = JogStream(controller.joints, limits, 1.0 / controller.rate_hz, gain)

    def poll_refusal(self) -> str:
        return self._jog.path.poll_refusal()

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        self._resting = False
        self._jog.follow(trajectory, self._clock.now_ns())

    def measured(self, positions: Mapping[str, float], stamps_ns: Mapping[str, int], believed: bool) -> None:
        joints = self.controller.joints
        position, stamps = (
            np.array([mapping[name] for name in joints]) for mapping in (positions, stamps_ns)
        )
        self._jog.measured(position if believed else None, stamps)

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        return by_name(self.controller.joints, self._jog.commanded(t_ns))

    def stop(self, braking: Trajectory | None, now_ns: int) -> None:
        self._jog.stop(now_ns, steady_ns(self._clock, now_ns))

    def rest(self) -> None:
        super().rest()
        self._jog.rest()

    def at_rest(self, now_ns: int) -> bool:
        return self._jog.at_rest(now_ns)

    def values(self) -> dict[str, object]:
        counts = self._jog.path.counts + self._jog.counts
        standing = [name for name, stands in zip(self.controller.joints, self._jog.standing) if stands]
        return {name: counts[name] for name in ("late", "joined", "bounded")} | {
            "measured to stand still": ", ".join(standing)
        }

    def _next(self, now_ns: int) -> np.ndarray | None:
        return self._jog.tick(now_ns, steady_ns(self._clock, now_ns))

    def _forget(self) -> None:
        self._jog.forget()


class TwistOutput(OfTwists, ServoOutput):
    """Hand velocities. buffer: takes the chunks of twists."""

    def __init__(
        self, controller: Controller, buffer: TwistBuffer, channel: ServoChannel, clock: Clock
    ) -> None:
        super().__init__(controller, channel, clock)
        self._buffer, self._accepted = buffer, 0

    def _next(self, now_ns: int) -> np.ndarray | None:
        accepted = self._buffer.counts["accepted"] + self._buffer.counts["steered"]
        if accepted != self._accepted:
            self._accepted, self._resting = accepted, False
        return self._buffer.tick(now_ns, steady_ns(self._clock, now_ns))

    def _forget(self) -> None:
        self._buffer.forget()


class PoseOutput(TwistOutput):
    """Poses of the hand, where its velocities lead. buffer: has a tip."""

    def _command(self, velocity: np.ndarray) -> np.ndarray:
        assert self._buffer.tip is not None
        return self._buffer.tip.numbers()

    def _pause(self, paused: bool) -> None:
        if self._buffer.tip is not None:
            self._buffer.tip.free = paused
        super()._pause(paused)
