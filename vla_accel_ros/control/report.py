"""What the motion does with chunks, as it is told to whoever makes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from vla_accel_ros.control.following.reasons import unnumbered
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.robot import Robot
from vla_accel_ros.control.teleop.takeover import ALIGNING, HUMAN

# Reported in steps, rounded up: an exact figure would change all the time.
_LEAD_STEP_S = 0.01


_REASONS = {
    ALIGNING: ("a person takes the arm over: it goes to where the leader arm is",),
    HUMAN: ("a person commands the arm; ~/give_back returns it to the policy",),
}


class Report(NamedTuple):
    """Published on changes, not at a rate, because a chunk computed after a change was published must not
    agree with motion that was never executed.

    beginning: how often motion began anew. state: running, stopping, holding, released, human or aligning.
    lead_s: how much of the old motion a new chunk keeps. causes: what the reasons are about, without their
    numbers.
    """

    beginning: int
    state: str
    lead_s: float
    causes: tuple[str, ...]
    reasons: tuple[str, ...] = ()


class Reports(list[Report]):
    """Those that are not published yet."""

    def __init__(self, robot: Robot) -> None:
        super().__init__()
        self._robot = robot
        self._last: Report | None = None

    def look(self, human: str) -> None:
        """Report what the robot does, if that has changed. human: see Takeover.state."""
        safety = self._robot.follower.safety
        lent = self._robot.holds.lent and safety.state is MotionState.HOLDING
        self.tell(
            "released" if lent else human or safety.state.value, safety.reasons or _REASONS.get(human, ())
        )

    def tell(self, state: str, reasons: Sequence[str]) -> None:
        """Report this, if it is new."""
        kept_s = self._robot.follower.buffer.kept_s
        lead_s = math.ceil(kept_s / _LEAD_STEP_S - 1e-6) * _LEAD_STEP_S
        report = Report(self._robot.beginning, state, lead_s, tuple(map(unnumbered, reasons)))
        if report != self._last:
            self._last = report
            self.append(report._replace(reasons=tuple(reasons)))
