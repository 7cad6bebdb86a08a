"""From a sample of a force sensor to a command, in the thread of the sensors.

It makes the ticks of controllers that are commanded at a fixed rate: a tick waits for the sample that is
about to come, so that its command is as fresh as possible. The guard judges the samples, and its reactions
are sent at once. Everything shared with the thread that decides about motion is behind the lock of the
outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from vla_accel_ros.control.following.clock_watch import ClockWatch
from vla_accel_ros.control.force.guard import ForceGuard, Reaction
from vla_accel_ros.control.robot import Robot

_LATENCIES = 4096

Sample = tuple[int, tuple[float, ...]]
"""stamp_ns, numbers."""


class Reflexes:
    """The reactions of an arm to its force sensors. Call it under the lock of the outputs.

    Attributes: `latencies_ns`, from the stamp of a sample to the command that it led to, and `reactions_ns`,
    those of a stop or a retreat; the newest of each. `failed`: a sentence if the sensors cannot be judged
    because of an error of this program; the robot stops until the node is restarted.
    """

    def __init__(self, robot: Robot, guard: ForceGuard) -> None:
        self._robot, self.guard = robot, guard
        self._outputs, self._clock = robot.outputs, robot.clock
        fastest_hz = max(sensor.rate_hz for sensor in guard.force.sensors)
        self._paces = [
            (output, Pace(output.controller.rate_hz, fastest_hz)) for output in robot.outputs.streams
        ]
        self._reaction: Reaction | None = None
        self._watch = ClockWatch(self._clock.now_ns, self._clock.monotonic_ns)
        self.failed = ""
        self.latencies_ns: deque[int] = deque(maxlen=_LATENCIES)
        self.reactions_ns: deque[int] = deque(maxlen=_LATENCIES)

    def feel(self, samples: Sequence[Sequence[Sample]], notes: Sequence[str]) -> int | None:
        """Take the new samples of each sensor, oldest first, and react. notes: why a sensor sends none, if
        that is known. Returns the stamp of the newest sample, if any; see `tick`."""
        guard, now_ns = self.guard, self._clock.now_ns()
        if self._watch.jump_ns() and not self._clock.simulated:
            guard.armed = False  # the path's times have lost their meaning
            for output, _ in self._paces:
                output.stop(None, now_ns)
        newest_ns = None
        for i, (watch, note) in enumerate(zip(guard.watches, notes, strict=True)):
            for stamp_ns, sample in samples[i]:
                guard.take(i, sample, stamp_ns, now_ns)
                newest_ns = stamp_ns if newest_ns is None else max(stamp_ns, newest_ns)
            watch.note = note or watch.note
        reaction = guard.step(now_ns, self._robot.kept_ns)
        if reaction is not None:
            self._outputs.react(reaction)
        self._reaction = reaction
        return newest_ns

    def tick(self, newest_ns: int | None) -> None:
        """Send the commands that are due: all after a reaction. newest_ns: stamp of a new sample, if any."""
        reaction, self._reaction = self._reaction, None
        steady_s, sent = self._clock.monotonic_ns() * 1e-9, reaction is not None
        for output, pace in self._paces:
            if reaction is not None or pace.due(steady_s, newest_ns is not None):
                pace.last_s = steady_s
                output.tick(self._clock.now_ns())
                sent = True
        if sent and newest_ns is not None:
            latency_ns = self._clock.now_ns() - newest_ns
            self.latencies_ns.append(latency_ns)
            if reaction is not None:
                self.reactions_ns.append(latency_ns)


class Pace:
    """When a tick is due: about every period, together with a sample if one comes about then."""

    def __init__(self, rate_hz: float, samples_hz: float) -> None:
        self._period_s = 1.0 / rate_hz
        self._slack_s = min(0.5 / samples_hz, 0.5 * self._period_s)
        self.last_s = 0.0

    def due(self, now_s: float, fresh: bool) -> bool:
        """Whether a tick is due. fresh: whether there is a new sample."""
        passed_s = now_s - self.last_s
        return passed_s >= self._period_s + (-self._slack_s if fresh else self._slack_s)
