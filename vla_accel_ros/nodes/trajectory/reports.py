"""Reports of the trajectory node: the topic `motion`, latched, on which guidance in inference depends, and
its lines in /diagnostics."""

from __future__ import annotations

from collections.abc import Collection

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import Motion as MotionMessage
from vla_accel_ros.control.chunking.source import ChunkSource
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.outputs.outputs import Outputs
from vla_accel_ros.control.report import Report
from vla_accel_ros.control.robot import Robot
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.controllers.parameters import ControllerCheck
from vla_accel_ros.nodes.diagnostics import ERROR, OK, WARN, status
from vla_accel_ros.nodes.messages import convert


def motion_message(report: Report, mode: str, now_ns: int) -> MotionMessage:
    """The message of a report. mode: of the trajectory buffer."""
    message = MotionMessage(
        mode=mode,
        beginning=report.beginning,
        state=convert.MOTION[report.state],
        lead_s=report.lead_s,
        reasons=[brief(reason) for reason in report.reasons],
    )
    convert.set_stamp(message.header.stamp, now_ns)
    return message


def motion_line(robot: Robot, faults: Collection[str], human: str, now_ns: int) -> DiagnosticStatus:
    """What the robot does and why, ages of the inputs, counts of chunks. faults: each makes the line an
    error. human: see Takeover.state."""
    follower = robot.follower
    safety, buffer = follower.safety, follower.buffer
    running = safety.state is MotionState.RUNNING
    stats = follower.stats(now_ns)
    ages = {f"age of {name} [s]": safety.watchdog.age_s(name, now_ns) for name in robot.contract.max_ages_s}
    values = {
        **{name: "never seen" if age is None else age for name, age in ages.items()},
        "image_to_trajectory p50 [ms]": stats.p50_s * 1e3,
        "image_to_trajectory p99 [ms]": stats.p99_s * 1e3,
        "trajectories": stats.runs,
        **{f"chunks {verdict}": count for verdict, count in (buffer.counts + follower.counts).items()},
        **({} if buffer.tempo is None else {"speed": f"{buffer.tempo} for {buffer.tempo.task!r}"}),
        "limits": str(buffer.report) if buffer.report is not None else "nothing sent yet",
    }
    return status(
        "motion",
        OK if running else ERROR if faults else WARN,
        (human or "running")
        if running
        else f"{safety.state.value}: {'; '.join(safety.reasons) or 'settling'}",
        values,
    )


def controller_lines(check: ControllerCheck) -> list[DiagnosticStatus]:
    """The findings about each controller that was asked."""
    return [
        status(topic, WARN if findings else OK, "; ".join(findings) or "parameters fit")
        for topic, findings in check.findings.items()
    ]


def output_lines(outputs: Outputs) -> list[DiagnosticStatus]:
    """A line for each controller that has values."""
    lines = []
    with outputs.lock:
        for output in outputs:
            if values := output.values():
                level, words = (WARN, output.trouble) if output.trouble else (OK, output.controller.kind)
                lines.append(status(f"{output.controller.topic} stream", level, words, values))
    return lines


def chunk_lines(source: ChunkSource) -> list[DiagnosticStatus]:
    """A line, if a slot of chunks may be used."""
    if source.summary is None:
        return []
    fine, words = source.summary
    return [status("chunks", OK if fine else WARN, words, dict(source.counts))]


def state_line(forgets: str) -> DiagnosticStatus:
    """Whether holds survive a restart. forgets: why they would not, empty if they would."""
    if not forgets:
        return status("state", OK, "a restart keeps what is held or released")
    return status("state", WARN, f"a restart would forget what is held or released: {forgets}")
