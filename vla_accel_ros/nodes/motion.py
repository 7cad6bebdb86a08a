"""The latched topic `motion`: the trajectory node tells what it does with chunks, inference guides by it.

Told when it changes and not at a rate: what counts is that a chunk computed after the word was out agrees
with nothing that was never executed. While the robot does not run it always says why, and again when the
causes are others.
"""

from __future__ import annotations

import math

from rclpy.lifecycle import LifecyclePublisher

from vla_accel_msgs.msg import Motion
from vla_accel_ros.control.chunking.guidance import Execution
from vla_accel_ros.nodes import convert

STATES = {
    "running": Motion.RUNNING,
    "stopping": Motion.STOPPING,
    "holding": Motion.HOLDING,
    "released": Motion.RELEASED,
}
_WORDS = {number: word for word, number in STATES.items()}


# Told in steps, rounded up: an exact figure would be another one all the time.
_LEAD_STEP_S = 0.01


class MotionTopic:
    """Tells of changes. mode: of the trajectory buffer."""

    def __init__(self, publisher: LifecyclePublisher, mode: str) -> None:
        self._publisher = publisher
        self._message = Motion(mode=mode)
        self._lead_s, self._causes = 0.0, tuple[str, ...]()

    def keep(self, kept_s: float) -> None:
        """How much of the old motion a new chunk keeps; told with the next `tell`."""
        self._lead_s = math.ceil(kept_s / _LEAD_STEP_S - 1e-6) * _LEAD_STEP_S

    def begin(self) -> None:
        """The commanded motion begins anew; told with the next `tell`."""
        self._message.beginning += 1
        self._message.state = 0

    def tell(
        self, state: str, reasons: tuple[str, ...], now_ns: int, causes: tuple[str, ...] | None = None
    ) -> None:
        """The present state, one of STATES, and why it does not run; said only when it is another.

        causes: what of the reasons does not change from moment to moment (Safety.causes); None: all.
        """
        message, causes = self._message, reasons if causes is None else causes
        if (message.state, message.lead_s, self._causes) != (STATES[state], self._lead_s, causes):
            message.lead_s, self._causes = self._lead_s, causes
            message.state, message.reasons = STATES[state], list(reasons)
            convert.set_stamp(message.header.stamp, now_ns)
            self._publisher.publish(message)


def execution(message: Motion) -> Execution:
    """What a message tells. A state of a later version counts as not running."""
    word = _WORDS.get(message.state, f"state {message.state}")
    return Execution(word, message.mode, message.lead_s, message.beginning)
