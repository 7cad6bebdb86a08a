"""The examination: every check once, ordered so that a fault is found before the faults that it hides.

The running nodes come first, since they name the contract and model; then the contract, the graph, the
streams, the controllers, the machine. A check whose subject is missing is left out, never guessed. The
verdict, whether the robot could move now, follows from all of it (verdict.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.contract import model_check
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.controller_check import Sender
from vla_accel_ros.contract.findings import Finding, error, ok, warning
from vla_accel_ros.nodes import diagnostics
from vla_accel_ros.nodes.clients.inspector import Inspector
from vla_accel_ros.nodes.running.environment import demo_contract, lacks_profile
from vla_accel_ros.nodes.running.host import Host
from vla_accel_ros.nodes.running.processes import Process, domain, of_node, processes
from vla_accel_ros.tools.doctor import gpu, machine, streams
from vla_accel_ros.tools.doctor.verdict import Node, Robot, Running, why_not

NODES = ("inference", "trajectory")
_ASKED = {
    "inference": (
        "contract",
        "model",
        "statistics",
        "trained_as",
        "prompt_state",
        "device",
        "dtype",
        "use_sim_time",
    ),
    "trajectory": ("contract", "stamp", "use_sim_time"),
}
_LEVELS = {diagnostics.ERROR: error, DiagnosticStatus.STALE: error, diagnostics.WARN: warning}


@dataclass(frozen=True)
class Question:
    """The user's options. contract, model: None for those of the running nodes. trained_as: of the model.
    seconds: how long to watch."""

    contract: Path | None
    model: Path | None
    trained_as: str
    namespace: str
    seconds: float


@dataclass(frozen=True)
class Examined:
    """why_not: why the robot could not move now; empty if it could. found: findings by section."""

    why_not: list[Finding]
    found: dict[str, list[Finding]]


def examine(question: Question, tell: Callable[[str], object]) -> Examined:
    """Return the verdict and all findings. tell: called with the present step."""
    found: dict[str, list[Finding]] = {}
    with Inspector(question.namespace) as visitor:
        before, began_s, host = processes(), time.monotonic(), Host()
        tell("looking for nodes")
        there = visitor.discover([visitor.name(node) for node in NODES])
        running = {node: visitor.name(node) for node in NODES if visitor.name(node) in there}
        asked = {
            node: visitor.parameters(running[node], _ASKED[node]) if node in running else {} for node in NODES
        }
        # A node that does not answer is asked nothing else.
        states = {node: visitor.state(name) if asked[node] else "" for node, name in running.items()}
        found["nodes"] = _nodes(visitor, there, running, states)
        found["clock"] = _clock(visitor, asked)
        contract, found["contract"] = _contract(question, asked)
        image_bytes = 0
        if contract is not None:
            visitor.ask_controllers(contract, Sender.of(contract, asked["trajectory"].get("stamp", "now")))
            tell(f"watching for {question.seconds:g} s")
            seen = visitor.watch(contract, question.seconds)
            found["graph"] = visitor.look(contract) + _schedulers(visitor)
            image_bytes = max((a.size for several in seen.arrivals.values() for a in several), default=0)
            found["streams"] = streams.judge(contract, seen, _lacks_profile(before))
            found["controllers"] = _controllers(visitor, contract)
        found["nodes"] += _diagnostics(visitor.diagnostics())
        tell("looking at the model and the machine")
        model, found["model"] = _model(question, asked, contract)
        now = processes()
        memory = machine.shared_memory()
        found["machine"] = machine.judge(visitor.rmw, os.environ, now, memory, image_bytes)
        if busy := host.busy:
            found["machine"].append(warning("processors", *busy.rsplit(": ", 1)))
        looks = _Looks(before, now, time.monotonic() - began_s)
        nodes = {node: _node(visitor, node, states.get(node), looks) for node in NODES}
        unheard, others = _commands(visitor, contract)
        robot = Robot(
            nodes["inference"], nodes["trajectory"], visitor.motion, visitor.inputs, unheard, others
        )
    inference = asked["inference"]
    found["gpu"] = gpu.judge(
        gpu.look(), inference.get("device", "auto"), inference.get("dtype", "float32"), _weights(model)
    )
    return Examined(why_not(robot), found)


@dataclass(frozen=True)
class _Looks:
    """Our processes before and after watching for some seconds."""

    before: Sequence[Process]
    now: Sequence[Process]
    seconds: float

    def of(self, name: str) -> list[Running]:
        """Those that could be a node."""
        before = {process.pid: process for process in self.before}
        return [
            Running(
                process.pid,
                process.stopped,
                (process.cpu_s - before.get(process.pid, process).cpu_s) / max(self.seconds, 0.1),
                process.is_starting(before.get(process.pid)),
            )
            for process in of_node(name, self.now)
        ]


def _node(visitor: Inspector, node: str, state: str | None, looks: _Looks) -> Node:
    name = visitor.name(node)
    said = [line for about, line in visitor.diagnostics().items() if about.startswith(f"{node}: ")]
    trouble = "; ".join(line.message for line in said if line.level == diagnostics.ERROR)
    return Node(name, state, trouble, looks.of(name))


def _lacks_profile(running: Sequence[Process]) -> bool:
    """Return whether one of our nodes in this domain lacks the Fast DDS profile; without nodes, whether this
    process does."""
    theirs = [p.environment for p in running if domain(p.environment) == domain(os.environ)]
    return any(map(lacks_profile, theirs or [os.environ]))


def _commands(visitor: Inspector, contract: Contract | None) -> tuple[list[str], dict[str, list[str]]]:
    """Return the command topics without a listener, and foreign publishers on topics that only our nodes may
    use."""
    topics = [] if contract is None else [controller.topic for controller in contract.controllers]
    ours = {"action_chunk": visitor.name("inference")}
    ours |= dict.fromkeys(topics, visitor.name("trajectory"))
    others: dict[str, list[str]] = {}
    for topic, owner in ours.items():
        there = visitor.publishers(topic)
        if owner in there:
            there.remove(owner)
        if there:
            others[topic] = there
    return [] if contract is None else visitor.unheard(contract), others


def _schedulers(visitor: Inspector) -> list[Finding]:
    there = visitor.publishers("fleet/admission")
    if len(there) < 2:
        return []
    what = f"{len(there)} fleet schedulers serve this robot: {', '.join(there)}"
    fix = "end all but one, or give each fleet its own ROS_DOMAIN_ID"
    return [error("fleet/admission", what, fix)]


def _nodes(
    visitor: Inspector, there: list[str], running: dict[str, str], states: Mapping[str, str]
) -> list[Finding]:
    if not there:
        what = f"no node but this one is in the graph of ROS_DOMAIN_ID {domain(os.environ)}"
        fix = "export the ROS_DOMAIN_ID and RMW_IMPLEMENTATION of the robot, and start its nodes"
        return [error("graph", what, fix)]
    found = []
    for node in NODES:
        if node not in running:
            others = [name for name in there if name.endswith(f"/{node}")]
            known = f"; {', '.join(others)} runs: give --namespace" if others else ""
            fix = f"ros2 launch vla_accel_ros bringup.launch.py{known}"
            found.append(warning(visitor.name(node), "does not run", fix))
            continue
        state = states[node]
        if not state:
            found.append(error(running[node], "does not answer", "see above"))
        elif state != "active":
            fix = f"read its log, then: ros2 lifecycle set {running[node]} configure, and activate"
            found.append(warning(running[node], f"is {state}", fix))
        else:
            found.append(ok(running[node], "is active"))
    return found


def _clock(visitor: Inspector, asked: dict[str, dict[str, Any]]) -> list[Finding]:
    wants = {node: values["use_sim_time"] for node, values in asked.items() if "use_sim_time" in values}
    sources = visitor.publishers("/clock")
    simulated = any(wants.values())
    if simulated:
        visitor.use_sim_time()
    found = []
    if simulated and not sources:
        names = ", ".join(node for node, wanted in wants.items() if wanted)
        what = f"use_sim_time is true in {names} but nobody publishes /clock, so that time stands still"
        found.append(
            error("use_sim_time", what, "set it to false, or start the simulator or bag with --clock")
        )
    if sources and not all(wants.values()):
        names = ", ".join(node for node, wanted in wants.items() if not wanted)
        what = f"/clock is published but use_sim_time is false in {names}"
        found.append(warning("use_sim_time", what, "give every node the same use_sim_time"))
    if len(sources) > 1:
        found.append(warning("/clock", f"has {len(sources)} publishers", "stop all but one"))
    return found or [ok("use_sim_time", "time comes from /clock" if simulated else "time is this machine's")]


def _contract(question: Question, asked: dict[str, dict[str, Any]]) -> tuple[Contract | None, list[Finding]]:
    given = {node: values["contract"] for node, values in asked.items() if "contract" in values}
    path = question.contract or Path(next(iter(given.values()), "") or demo_contract())
    found = []
    if len(set(given.values())) > 1:
        what = " but ".join(f"{node} has {path or 'the default'}" for node, path in given.items())
        found.append(error("contract", what, "give both nodes the same contract"))
    try:
        contract = Contract.load(path)
    except (ValueError, OSError) as refusal:
        fix = "fix it" if question.contract else "fix it, or give a copy with --contract if it is elsewhere"
        return None, [*found, error("contract", str(refusal), fix)]
    if not given and question.contract is None:
        what = "no running node says which contract it uses; the simulated arm's is taken"
        return contract, [warning("contract", what, "give --contract")]
    return contract, found or [ok("contract", f"{contract.robot}, {path}")]


def _controllers(visitor: Inspector, contract: Contract) -> list[Finding]:
    found = []
    for topic, findings in visitor.controllers(contract).items():
        if findings is None:
            fix = "check that it runs, and that it is of the contract's kind"
            found.append(warning(topic, "its controller does not answer with its parameters", fix))
        else:
            found += findings or [ok(topic, "the controller's parameters fit")]
    return found


def _model(
    question: Question, asked: dict[str, dict[str, Any]], contract: Contract | None
) -> tuple[Path | None, list[Finding]]:
    if question.model is None and "model" not in asked["inference"]:
        return None, [warning("model", "is not known: inference does not run", "give --model to compare one")]
    try:
        node = {} if question.model else asked["inference"]
        if not (folder := question.model or node["model"]):
            raise ValueError("inference has no model")
        folder = Path(folder)
        trained_as = question.trained_as or node.get("trained_as", "")
        model = model_check.read_model(
            folder, node.get("statistics"), trained_as, node.get("prompt_state", "auto")
        )
    except (ValueError, OSError) as refusal:
        return None, [error("model", str(refusal), "give the checkpoint's folder with --model")]
    return folder, model_check.judge(model, contract) if contract is not None else []


def _diagnostics(lines: dict[str, DiagnosticStatus]) -> list[Finding]:
    return [
        _LEVELS[line.level](name, line.message, "see its log")
        for name, line in sorted(lines.items())
        if line.level in _LEVELS and name.partition(":")[0] in NODES
    ]


def _weights(folder: Path | None) -> int:
    files = [] if folder is None else folder.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)
