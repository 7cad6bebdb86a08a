"""What the trajectory node knows about its motion, as lines of diagnostics."""

from __future__ import annotations

from collections.abc import Collection

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.watchdog import Motion
from vla_accel_ros.nodes.controllers.parameters import ControllerCheck
from vla_accel_ros.nodes.diagnostics import ERROR, OK, WARN, status


def motion_line(
    follower: ChunkFollower, contract: Contract, faults: Collection[str], now_ns: int
) -> DiagnosticStatus:
    """What the robot does and why not, ages of the inputs, what became of chunks. faults: an error, each."""
    safety, buffer = follower.safety, follower.buffer
    running = safety.state is Motion.RUNNING
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
    """What is wrong with each controller that was asked."""
    return [
        status(topic, WARN if found else OK, "; ".join(found) or "parameters fit")
        for topic, found in check.findings.items()
    ]
