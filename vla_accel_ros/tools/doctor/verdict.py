"""Could this robot move now; and if not, why not, and what fixes each reason.

The causes form a chain: processes, their lifecycle states, what inference lacks for a chunk, why the
trajectory node holds, and who else commands or listens. A cause hides its consequences: a node that does not
answer is asked nothing else. Facts are plain data; nothing here reads a clock or the graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vla_accel_ros.contract.checks.findings import Finding, error
from vla_accel_ros.sensing.arrivals import Inputs

BUSY = 0.2
"""Share of a core above which a process that does not answer counts as busy."""
# Reasons that pass by themselves once their cause is fixed, as they say.
_FIXED = re.compile(
    r"controllers\[\d+\]|(a second|another) publisher .* is there|ROS time stands still|\S+: the controller"
)
_BY_ITSELF = re.compile(r"((camera|tf)/\S+|joint_states|chunk|inputs|inference)\b")


@dataclass(frozen=True)
class Running:
    """A process on this machine. stopped: by a signal. load: cores that it used while watched. starting: it
    is young, or reads or writes."""

    pid: int
    stopped: bool = False
    load: float = 0.0
    starting: bool = False


@dataclass(frozen=True)
class Node:
    """One of our nodes. name: in the graph. state: of its lifecycle, empty if it does not answer, None if it
    is not in the graph. trouble: its own error report. processes: those that could be this node."""

    name: str
    state: str | None
    trouble: str = ""
    processes: Sequence[Running] = ()


@dataclass(frozen=True)
class Robot:
    """What was seen of a robot.

    motion: the trajectory node's last state (`running`, ...) and its reasons; None if it reported none.
    inputs: inference's last report. unheard: command topics without a listener. rivals: foreign publishers of
    a topic that belongs to one node, by topic.
    """

    inference: Node
    trajectory: Node
    motion: tuple[str, Sequence[str]] | None = None
    inputs: Inputs | None = None
    unheard: Sequence[str] = ()
    rivals: Mapping[str, Sequence[str]] = field(default_factory=dict)


def why_not(robot: Robot) -> list[Finding]:
    """Return every reason why it could not move; empty if it could."""
    findings = [*_of_node(robot.trajectory), *_of_node(robot.inference)]
    if robot.inference.state == "active":
        findings += _of_inputs(robot.inference.name, robot.inputs)
    if robot.trajectory.state == "active":
        findings += _of_motion(robot, bool(findings))
    reasons = "; ".join(robot.motion[1]) if robot.motion is not None else ""
    for topic in robot.unheard:
        if topic not in reasons:
            findings.append(error(topic, "nobody listens to it", "start its controller, or fix the contract"))
    for topic, publishers in robot.rivals.items():
        findings.append(error(topic, f"is also published by {', '.join(publishers)}", "stop all but ours"))
    return findings


def _of_node(node: Node) -> list[Finding]:
    if node.state == "active":
        return []
    if node.state:
        fact = f"is {node.state}" + (f": {node.trouble}" if node.trouble else "")
        steps = {"unconfigured": ("configure", "activate"), "inactive": ("activate",)}.get(node.state, ())
        fix = " && ".join(f"ros2 lifecycle set {node.name} {step}" for step in steps) or "start it again"
        return [error(node.name, fact, fix)]
    if not node.processes and node.state is None:
        return [error(node.name, "does not run", "ros2 launch vla_accel_ros bringup.launch.py")]
    if not node.processes:
        fact = "hangs, or has died just now: it is in the graph and does not answer"
        return [error(node.name, fact, "end its process on the machine where it runs, and start it again")]
    return [_of_process(node, process) for process in node.processes]


def _of_process(node: Node, process: Running) -> Finding:
    pid = process.pid
    silent = "does not answer" if node.state == "" else "is not in the graph"
    if process.stopped:
        fact, fix = f"hangs: process {pid} was stopped by a signal", f"kill -CONT {pid} lets it go on"
    elif process.starting:
        fact = f"is starting: process {pid} {silent} yet, and is young, or reads or writes"
        fix = "wait until it has loaded its model; its log tells how far it is"
    elif process.load > BUSY:
        fact = f"{silent}, but process {pid} works ({process.load:.1f} of a core)"
        fix = f"wait while it starts or loads its model; if it never ends, {_end(pid)}"
    else:
        fact, fix = f"hangs: process {pid} {silent} and does nothing", f"read its log, then {_end(pid)}"
    return error(node.name, fact, fix)


def _end(pid: int) -> str:
    return f"end it: kill {pid}, and only if it is still there after 10 s: kill -9 {pid}"


def _of_inputs(name: str, inputs: Inputs | None) -> list[Finding]:
    if inputs is None:
        fix = "check its namespace and version, or start it again"
        return [error(name, "is active but publishes nothing on the topic inputs", fix)]
    if not inputs.waiting_for:
        return []
    fact, _, fix = inputs.waiting_for.partition(": ")
    if fact.startswith("no instruction"):
        return [error(name, "has no instruction yet", 'vla say "..."')]
    problems = "; ".join(f"{stream}: {problem}" for stream, problem in inputs.problems.items())
    return [error(name, f"makes no chunks: {fact}", problems or fix or "see the streams below")]


def _of_motion(robot: Robot, explained: bool) -> list[Finding]:
    """Return the trajectory node's reasons. known: a cause was found already, of which a late input is only a
    consequence."""
    name = robot.trajectory.name
    if robot.motion is None:
        return [
            error(name, "is active but publishes no motion", f"end it and start it again: it is not {name}")
        ]
    state, reasons = robot.motion
    if state == "running":
        return []
    findings = [_of_reason(robot, reason) for reason in reasons]
    if explained:
        findings = [finding for finding, reason in zip(findings, reasons) if not _BY_ITSELF.match(reason)]
    if not findings and not explained:
        findings = [error(name, f"is {state} without a reason", "it may be settling: ask once more")]
    return findings


def _of_reason(robot: Robot, reason: str) -> Finding:
    name = robot.trajectory.name
    input = _BY_ITSELF.match(reason)
    problems = robot.inputs.problems if robot.inputs is not None else {}
    if input:
        fix = problems.get(input[1], "it goes on by itself once this comes again; see the streams below")
        return error(name, reason, fix)
    if reason.startswith("the model makes"):
        return error(name, reason, "raise chunk.max_age_s, or make the model faster")
    if _FIXED.match(reason):
        fact, _, fix = reason.partition("; ")
        return error(name, fact, fix)
    named = re.search(r"~/(\w+)", reason)
    service = named[1] if named else "resume"
    return error(name, reason, f"~/{service}: ros2 service call {name}/{service} std_srvs/srv/Trigger")
