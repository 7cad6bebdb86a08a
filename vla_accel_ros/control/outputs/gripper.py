"""Grippers that are moved by the goals of an action: GripperCommand or ParallelGripperCommand.

The commanded path is that of every stream (positions.py), so limits and stops are the same. It is sent as
goals, one at a time: the next goes out when the last has ended and the path has moved on, each no further
than the gripper may go in a period. A path that turns back cancels the goal on its way. The controller holds
where a goal ended, on an object or not, so a stop is the path's own end.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.output import Clock, Controller
from vla_accel_ros.control.outputs.positions import PositionOutput

_RESOLUTION = 0.01
"""Share of a joint's range that is worth a goal."""


class GripperAction(Protocol):
    """The action of a gripper; nothing here waits.

    failure: a sentence if the last goal was rejected or aborted, else empty.
    """

    failure: str

    @property
    def busy(self) -> bool:
        """Whether a goal is on its way."""
        ...

    @property
    def problem(self) -> str:
        """A sentence, always the same, if no goal can be sent; else empty."""
        ...

    def send(self, position: np.ndarray) -> None:
        """Send a goal, float64 [D]."""
        ...

    def cancel(self) -> None:
        """Cancel the goal."""
        ...

    def close(self) -> None:
        """No more is sent."""
        ...


class Goals:
    """A StreamChannel that makes goals of positions. limits: of the joints; period_s: between two positions.
    Attribute `sent`: number of goals."""

    def __init__(self, action: GripperAction, limits: JointLimits, period_s: float) -> None:
        self.action, self.sent = action, 0
        self._resolution = _RESOLUTION * (limits.upper - limits.lower)
        self._furthest = np.maximum(limits.velocity * period_s, self._resolution)
        self._goal: np.ndarray | None = None
        self._command: np.ndarray | None = None  # before this one
        self._way = np.zeros(len(limits.lower))
        self._cancelled = False

    def publish(self, command: np.ndarray, now_ns: int) -> None:
        """Send a goal towards these positions, if it is time for one."""
        stands = self._command is not None and (command == self._command).all()
        self._command = command.copy()
        if self.action.problem:
            self._goal = None  # whoever comes next begins where the gripper is
            return
        step = np.inf if self._goal is None else command - self._goal
        if self.action.busy:
            if (
                not self._cancelled
                and (np.sign(step) * self._way < 0.0)[np.abs(step) > self._resolution].any()
            ):
                self._cancelled = True
                self.action.cancel()
            return
        if not (np.abs(step) > (0.0 if stands else self._resolution)).any():
            return
        goal = command.copy()
        if self._goal is not None:
            goal = self._goal + np.clip(step, -self._furthest, self._furthest)
            self._way = np.sign(goal - self._goal)
        self._goal, self._cancelled = goal, False
        self.sent += 1
        self.action.send(goal)

    def close(self) -> None:
        """See StreamChannel."""
        self.action.close()


class GripperOutput(PositionOutput):
    """limits: of the controller's joints, in its order."""

    def __init__(
        self, controller: Controller, limits: JointLimits, action: GripperAction, clock: Clock
    ) -> None:
        self._goals = Goals(action, limits, 1.0 / controller.rate_hz)
        super().__init__(controller, limits, self._goals, clock)

    @property
    def hindrance(self) -> str:
        return self._goals.action.problem

    @property
    def trouble(self) -> str:
        return self._goals.action.failure

    def values(self) -> dict[str, object]:
        return {**super().values(), "goals": self._goals.sent}
