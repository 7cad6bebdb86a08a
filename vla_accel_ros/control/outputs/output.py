"""The interface between the motion and one controller.

An output takes absolute trajectories that are within limits, each in place of the one before, and makes its
controller follow them. The optional methods are for controllers that need more than an occasional message:
those that are commanded at a fixed rate, and those that can be paused. An output decides nothing about the
motion; what it decides about its messages leaves by a channel, which alone knows the transport.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from vla_accel_ros.control.outputs.reports import ReportedState
from vla_accel_ros.control.trajectory import Trajectory

# Methods that most controllers do not need do nothing, on purpose.
# ruff: noqa: B027

_PREEMPTED_NS = 1_000_000_000
# A process may be preempted between the readings of two clocks, too: of some readings the closest counts.
_READINGS, _APART_NS = 5, 50_000


class Controller(Protocol):
    """A controller of a contract: its command topic, its joints in its order, and how it is commanded."""

    @property
    def topic(self) -> str: ...

    @property
    def joints(self) -> tuple[str, ...]: ...

    @property
    def kind(self) -> str: ...

    @property
    def rate_hz(self) -> float: ...
    @property
    def frame(self) -> str: ...

    @property
    def action(self) -> str: ...


class Clock(Protocol):
    """The time of a process: asked where time passes between a decision and its message."""

    @property
    def jumped_ns(self) -> int:
        """How far ROS time was set last."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether ROS time comes from /clock, which the motion then follows."""
        ...

    def now_ns(self) -> int:
        """ROS time."""
        ...

    def monotonic_ns(self) -> int:
        """A clock that is never set."""
        ...

    def was_set(self) -> bool:
        """Whether ROS time was set during the present callback."""
        ...


class StreamChannel(Protocol):
    """The topic of a controller that is commanded at a fixed rate."""

    def publish(self, command: np.ndarray, now_ns: int) -> None:
        """Publish one command, float64 [D]."""
        ...

    def close(self) -> None:
        """Return when everything sent has arrived."""
        ...


class TrajectoryChannel(Protocol):
    """The topic of a joint_trajectory_controller, and what comes back from it."""

    @property
    def reports(self) -> bool:
        """Whether the controller's state is listened to."""
        ...

    def write(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        """Prepare the message: it begins at start_ns, or when it arrives if it is not stamped."""
        ...

    def publish(self) -> None:
        """Publish the message that was written last."""
        ...

    def is_heard(self) -> bool:
        """Whether anybody subscribes to the topic."""
        ...

    def is_acknowledged(self) -> bool:
        """Whether everything sent has been acknowledged by now."""
        ...

    def newest(self) -> ReportedState | None:
        """The newest state that the controller reports; None if there is no new one."""
        ...

    def close(self) -> None:
        """Return when everything sent has arrived: it may be destroyed next, and with it a stop."""
        ...


class Output(ABC):
    """Sends commands to one controller. All calls come from one thread at a time."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    @abstractmethod
    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        """Follow this trajectory from now on; it may have other joints too. decided_ns: when it was decided;
        this process may not have been scheduled since."""

    def measured(self, positions: Mapping[str, float], stamps_ns: Mapping[str, int], believed: bool) -> None:
        """Take measured joint positions by name, as they arrive. stamps_ns: when each was measured. believed:
        False while a joint leaps or does not follow, until a person has resumed; nothing may be moved to such
        positions."""

    def reference(self, now_ns: int) -> Mapping[str, float]:
        """Commanded position that its controller reports, by joint name; empty without a recent report."""
        return {}

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        """Commanded position of its controller's joints at a time, by the trajectories sent before, by joint
        name; empty if that equals the decided motion."""
        return {}

    def begin(self) -> None:
        """Send nothing until the next trajectory: the robot is elsewhere, or others drive it."""

    def stop(self, braking: Trajectory | None, now_ns: int) -> Trajectory | None:
        """Come to rest, because the clock has jumped and the trajectory's times have lost their meaning.

        braking: the stop in the new time, for a controller that executes by itself; None if it is at rest.
        Returns what its controller executes instead, at the latest times possible; None if it executes
        `braking`.
        """
        return None

    def rests_ns(self) -> int:
        """When its controller comes to rest, if the last trajectory was sent later than it was decided, else
        0."""
        return 0

    def tick(self, now_ns: int) -> None:
        """Send what is due now."""

    def open(self) -> list[str]:
        """Prepare the controller at activation; returns one sentence for each thing that failed."""
        return []

    def rest(self) -> None:
        """The robot has come to rest, and is held."""

    def at_rest(self, now_ns: int) -> bool:
        """Whether there is no stream of commands to send, or it has come to its end."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Leave the controller alone, at deactivation; returns when everything sent has arrived."""

    def lead_s(self, now_ns: int) -> float:
        """How long a trajectory takes to reach the controller, as far as known; called at the watchdog's
        rate."""
        return 0.0

    @property
    def waits(self) -> bool:
        """Whether its controller is about to report its setpoint; no motion begins before."""
        return False

    @property
    def awaits_arrival(self) -> bool:
        """Whether chunks should wait for a moment, until what was sent has arrived."""
        return False

    @property
    def hindrance(self) -> str:
        """One sentence, always the same, that says why the controller would not execute trajectories as they
        are meant; empty if it would. The robot is held meanwhile."""
        return ""

    @property
    def trouble(self) -> str:
        """A sentence if the controller does not get its trajectories in time, else empty."""
        return ""

    def poll_refusal(self) -> str:
        """Why its controller cannot be led to the decided motion, and comes to rest; empty if it can, and
        after that was asked."""
        return ""

    def values(self) -> dict[str, object]:
        """Numbers for diagnostics."""
        return {}


def steady_ns(clock: Clock, now_ns: int) -> int | None:
    """The instant now_ns, which has just been, by a clock that is never set; None in simulated time, which
    the motion then follows. If the process was preempted since, no step is longer than its stamps say."""
    if clock.simulated:
        return None
    # Each: time between two readings of the steady clock, the later one, and the ROS time that passed.
    readings: list[tuple[int, int, int]] = []
    while len(readings) < _READINGS and min(readings, default=(_APART_NS,))[0] >= _APART_NS:
        before_ns, passed_ns, after_ns = clock.monotonic_ns(), clock.now_ns() - now_ns, clock.monotonic_ns()
        readings.append((after_ns - before_ns, after_ns, passed_ns))
    _, steady_now_ns, passed_ns = min(readings)
    return steady_now_ns - (passed_ns if 0 <= passed_ns < _PREEMPTED_NS else 0)


def by_name(names: tuple[str, ...], positions: np.ndarray | None) -> dict[str, float]:
    """float64 [D] positions by name; empty if unknown."""
    return {} if positions is None else dict(zip(names, positions.tolist()))
