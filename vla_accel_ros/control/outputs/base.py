"""A mobile base: velocities at a fixed rate, from the first chunk on, also while it is held, until it is
released.

Nothing else stops a base that is sent a velocity, until its own timeout. So it is commanded to ramp to zero,
and then zero: what is silent, another may command.
"""

from __future__ import annotations

from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.outputs.output import Clock, Controller, Output, StreamChannel, steady_ns
from vla_accel_ros.control.trajectory import Trajectory


class OfTwists(Output):
    """What a controller is sent that is moved by a buffer of twists alone; trajectories are for the
    joints."""

    _buffer: TwistBuffer
    _clock: Clock

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        """Does nothing."""

    def stop(self, braking: Trajectory | None, now_ns: int) -> None:
        self._buffer.restart(now_ns, steady_ns(self._clock, now_ns))

    def at_rest(self, now_ns: int) -> bool:
        return self._buffer.at_rest(now_ns)

    def values(self) -> dict[str, object]:
        return {f"chunks {verdict}": count for verdict, count in self._buffer.counts.items()}


class BaseOutput(OfTwists):
    """buffer: takes the chunks' columns of the base."""

    def __init__(
        self, controller: Controller, buffer: TwistBuffer, channel: StreamChannel, clock: Clock
    ) -> None:
        super().__init__(controller)
        self._buffer, self._channel, self._clock = buffer, channel, clock

    def begin(self) -> None:
        self._buffer.forget()

    def tick(self, now_ns: int) -> None:
        velocity = self._buffer.tick(now_ns, steady_ns(self._clock, now_ns))
        if velocity is not None:
            self._channel.publish(velocity, now_ns)

    def close(self) -> None:
        self._channel.close()
