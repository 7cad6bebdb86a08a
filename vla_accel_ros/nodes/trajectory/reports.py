"""Reports of the trajectory node: the topic `motion`, and its lines in /diagnostics.

`motion`, what the node does with chunks, is latched; guidance in inference depends on it. It is published on
changes, not at a rate: a chunk computed after a change was published must not agree with motion that was
never executed. While the robot does not run it always gives the reasons, and is published again when the
causes change.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecyclePublisher

from vla_accel_msgs.msg import Motion as MotionMessage
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.reasons import unnumbered
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.controllers.parameters import ControllerCheck
from vla_accel_ros.nodes.diagnostics import ERROR, OK, WARN, status
from vla_accel_ros.nodes.messages import convert

# Reported in steps, rounded up: an exact figure would change all the time.
_LEAD_STEP_S = 0.01


class MotionTopic:
    """Publishes changes. mode: of the trajectory buffer."""

    def __init__(self, publisher: LifecyclePublisher, mode: str) -> None:
        self._publisher = publisher
        self._message = MotionMessage(mode=mode)
        self._lead_s, self._causes = 0.0, tuple[str, ...]()

    def keep(self, kept_s: float) -> None:
        """Set how much of the old motion a new chunk keeps; published by the next `tell`."""
        self._lead_s = math.ceil(kept_s / _LEAD_STEP_S - 1e-6) * _LEAD_STEP_S

    def begin(self) -> None:
        """The commanded motion starts anew; published by the next `tell`."""
        self._message.beginning += 1
        self._message.state = 0

    def tell(self, state: str, reasons: tuple[str, ...], now_ns: int) -> None:
        """Publish the present state, one of convert.MOTION, and why it does not run, if more than a number in
        that has changed."""
        message, causes = self._message, tuple(map(unnumbered, reasons))
        if (message.state, message.lead_s, self._causes) != (convert.MOTION[state], self._lead_s, causes):
            message.lead_s, self._causes = self._lead_s, causes
            message.state, message.reasons = convert.MOTION[state], [brief(reason) for reason in reasons]
            convert.set_stamp(message.header.stamp, now_ns)
            self._publisher.publish(message)


def motion_line(
    follower: ChunkFollower, contract: Contract, faults: Collection[str], now_ns: int
) -> DiagnosticStatus:
    """What the robot does and why, ages of the inputs, counts of chunks. faults: each makes the line an
    error."""
    safety, buffer = follower.safety, follower.buffer
    running = safety.state is MotionState.RUNNING
    stats = follower.stats(now_ns)
    ages = {f"age of {name} [s]": safety.watchdog.age_s(name, now_ns) for name in contract.max_ages_s}
    values = {
        **{name: "never seen" if age is None else age for name, age in ages.items()},
        "image_to_trajectory p50 [ms]": stats.p50_s * 1e3,
        "image_to_trajectory p99 [ms]": stats.p99_s * 1e3,
        "trajectories": stats.runs,
        **{f"chunks {why}": count for why, count in (buffer.counts + follower.counts).items()},
        "limits": str(buffer.report) if buffer.report is not None else "nothing sent yet",
    }
    return status(
        "motion",
        OK if running else ERROR if faults else WARN,
        "running" if running else f"{safety.state.value}: {'; '.join(safety.reasons) or 'settling'}",
        values,
    )


def controller_lines(check: ControllerCheck) -> list[DiagnosticStatus]:
    """The findings about each controller that was asked."""
    return [
        status(topic, WARN if found else OK, "; ".join(found) or "parameters fit")
        for topic, found in check.findings.items()
    ]


def state_line(forgets: str) -> DiagnosticStatus:
    """Whether holds survive a restart. forgets: why they would not, empty if they would."""
    if not forgets:
        return status("state", OK, "a restart keeps what is held or released")
    return status("state", WARN, f"a restart would forget what is held or released: {forgets}")
