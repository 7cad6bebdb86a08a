"""The examination: every check once, ordered so that a fault is found before the faults that it hides.

The running nodes come first, since they name the contract and model; then the contract, the graph, the
streams, the controllers, the machine. A check whose subject is missing is left out, never guessed. The
verdict, whether the robot could move now, follows from all of it (verdict.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.contract.checks import model_check
from vla_accel_ros.contract.checks.controller_check import Sender
from vla_accel_ros.contract.checks.findings import Finding, error, ok, warning
from vla_accel_ros.contract.contract import Contract
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
    """why_not: why the robot could not move now; empty if it could. sections: findings by section."""

    why_not: list[Finding]
    sections: dict[str, list[Finding]]


def examine(question: Question, tell: Callable[[str], object]) -> Examined:
    """Return the verdict and all findings. tell: called with the present step."""
    sections: dict[str, list[Finding]] = {}
    with Inspector(question.namespace) as visitor:
        first, began_s, host = processes(), time.monotonic(), Host()
        tell("looking for nodes")
        names = visitor.discover([visitor.name(node) for node in NODES])
        running = {node: visitor.name(node) for node in NODES if visitor.name(node) in names}
        parameters = {
            node: visitor.parameters(running[node], _ASKED[node]) if node in running else {} for node in NODES
        }
        # A node that does not answer is asked nothing else.
        states = {node: visitor.state(name) if parameters[node] else "" for node, name in running.items()}
        sections["nodes"] = list(_nodes(visitor, names, running, states))
        sections["clock"] = list(_clock(visitor, parameters))
        contract, sections["contract"] = _contract(question, parameters)
        image_bytes = 0
        if contract is not None:
            visitor.ask_controllers(
                contract, Sender.of(contract, parameters["trajectory"].get("stamp", "now"))
            )
            tell(f"watching for {question.seconds:g} s")
            watched = visitor.watch(contract, question.seconds)
            sections["graph"] = visitor.look(contract) + _schedulers(visitor)
            image_bytes = max((a.size for several in watched.arrivals.values() for a in several), default=0)
            sections["streams"] = streams.judge(contract, watched, _lacks_profile(first))
            sections["controllers"] = list(_controllers(visitor, contract))
        sections["nodes"] += _diagnostics(visitor.diagnostics())
        tell("looking at the model and the machine")
        model, sections["model"] = _model(question, parameters, contract)
        last = processes()
        memory = machine.shared_memory()
        sections["machine"] = machine.judge(visitor.rmw, os.environ, last, memory, image_bytes)
        if busy := host.busy:
            sections["machine"].append(warning("processors", *busy.rsplit(": ", 1)))
        looks = _Looks(first, last, time.monotonic() - began_s)
        nodes = {node: _node(visitor, node, states.get(node), looks) for node in NODES}
        unheard, publishers = _commands(visitor, contract)
        robot = Robot(
            nodes["inference"], nodes["trajectory"], visitor.motion, visitor.inputs, unheard, publishers
        )
    inference = parameters["inference"]
    sections["gpu"] = gpu.judge(
        gpu.look(), inference.get("device", "auto"), inference.get("dtype", "float32"), _weights(model)
    )
    return Examined(why_not(robot), sections)


@dataclass(frozen=True)
class _Looks:
    """Our processes before and after watching for some seconds."""

    earlier: Sequence[Process]
    later: Sequence[Process]
    seconds: float

    def of(self, name: str) -> list[Running]:
        """Those that could be a node."""
        earlier = {process.pid: process for process in self.earlier}
        return [
            Running(
                process.pid,
                process.stopped,
                (process.cpu_s - earlier.get(process.pid, process).cpu_s) / max(self.seconds, 0.1),
                process.is_starting(earlier.get(process.pid)),
            )
            for process in of_node(name, self.later)
        ]


def _node(visitor: Inspector, node: str, state: str | None, looks: _Looks) -> Node:
    name = visitor.name(node)
    lines = [line for about, line in visitor.diagnostics().items() if about.startswith(f"{node}: ")]
    trouble = "; ".join(line.message for line in lines if line.level == diagnostics.ERROR)
    return Node(name, state, trouble, looks.of(name))


def _lacks_profile(running: Sequence[Process]) -> bool:
    """Return whether one of our nodes in this domain lacks the Fast DDS profile; without nodes, whether this
    process does."""
    environments = [p.environment for p in running if domain(p.environment) == domain(os.environ)]
    return any(map(lacks_profile, environments or [os.environ]))


def _commands(visitor: Inspector, contract: Contract | None) -> tuple[list[str], dict[str, list[str]]]:
    """Return the command topics without a listener, and foreign publishers on topics that only our nodes may
    use."""
    topics = [] if contract is None else [controller.topic for controller in contract.commanded]
    ours = {"action_chunk": visitor.name("inference")}
    ours |= dict.fromkeys(topics, visitor.name("trajectory"))
    publishers: dict[str, list[str]] = {}
    for topic, owner in ours.items():
        nodes = visitor.publishers(topic)
        if owner in nodes:
            nodes.remove(owner)
        if nodes:
            publishers[topic] = nodes
    return [] if contract is None else visitor.unheard(contract), publishers


def _schedulers(visitor: Inspector) -> list[Finding]:
    nodes = visitor.publishers("fleet/admission")
    if len(nodes) < 2:
        return []
    fact = f"{len(nodes)} fleet schedulers serve this robot: {', '.join(nodes)}"
    fix = "end all but one, or give each fleet its own ROS_DOMAIN_ID"
    return [error("fleet/admission", fact, fix)]


def _nodes(
    visitor: Inspector, names: list[str], running: dict[str, str], states: Mapping[str, str]
) -> Iterator[Finding]:
    if not names:
        fact = f"no node but this one is in the graph of ROS_DOMAIN_ID {domain(os.environ)}"
        fix = "export the ROS_DOMAIN_ID and RMW_IMPLEMENTATION of the robot, and start its nodes"
        yield error("graph", fact, fix)
        return
    for node in NODES:
        if node not in running:
            elsewhere = [name for name in names if name.endswith(f"/{node}")]
            hint = f"; {', '.join(elsewhere)} runs: give --namespace" if elsewhere else ""
            fix = f"ros2 launch vla_accel_ros bringup.launch.py{hint}"
            yield warning(visitor.name(node), "does not run", fix)
        elif not states[node]:
            yield error(running[node], "does not answer", "see above")
        elif states[node] != "active":
            fix = f"read its log, then: ros2 lifecycle set {running[node]} configure, and activate"
            yield warning(running[node], f"is {states[node]}", fix)
        else:
            yield ok(running[node], "is active")


def _clock(visitor: Inspector, parameters: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    wants = {node: values["use_sim_time"] for node, values in parameters.items() if "use_sim_time" in values}
    sources = visitor.publishers("/clock")
    simulated = [node for node, simulating in wants.items() if simulating]
    real = ", ".join(node for node in wants if node not in simulated)
    if simulated:
        visitor.use_sim_time()
    if simulated and not sources:
        fact = f"use_sim_time is true in {', '.join(simulated)} but nobody publishes /clock, so that time"
        fix = "set it to false, or start the simulator or bag with --clock"
        yield error("use_sim_time", f"{fact} stands still", fix)
    elif sources and real:
        fact = f"/clock is published but use_sim_time is false in {real}"
        yield warning("use_sim_time", fact, "give every node the same use_sim_time")
    elif len(sources) < 2:
        yield ok("use_sim_time", "time comes from /clock" if simulated else "time is this machine's")
    if len(sources) > 1:
        yield warning("/clock", f"has {len(sources)} publishers", "stop all but one")


def _contract(
    question: Question, parameters: dict[str, dict[str, Any]]
) -> tuple[Contract | None, list[Finding]]:
    paths = {node: values["contract"] for node, values in parameters.items() if "contract" in values}
    path = question.contract or Path(next(iter(paths.values()), "") or demo_contract())
    findings = []
    if len(set(paths.values())) > 1:
        fact = " but ".join(f"{node} has {path or 'the default'}" for node, path in paths.items())
        findings.append(error("contract", fact, "give both nodes the same contract"))
    try:
        contract = Contract.load(path)
    except (ValueError, OSError) as refusal:
        fix = "fix it" if question.contract else "fix it, or give a copy with --contract if it is elsewhere"
        return None, [*findings, error("contract", str(refusal), fix)]
    if not paths and question.contract is None:
        fact = "no running node says which contract it uses; the simulated arm's is taken"
        return contract, [warning("contract", fact, "give --contract")]
    return contract, findings or [ok("contract", f"{contract.robot}, {path}")]


def _controllers(visitor: Inspector, contract: Contract) -> Iterator[Finding]:
    for topic, findings in visitor.controllers(contract).items():
        if findings is None:
            fix = "check that it runs, and that it is of the contract's kind"
            yield warning(topic, "its controller does not answer with its parameters", fix)
        else:
            yield from findings or [ok(topic, "the controller's parameters fit")]


def _model(
    question: Question, parameters: dict[str, dict[str, Any]], contract: Contract | None
) -> tuple[Path | None, list[Finding]]:
    if question.model is None and "model" not in parameters["inference"]:
        return None, [warning("model", "is not known: inference does not run", "give --model to compare one")]
    try:
        node = {} if question.model else parameters["inference"]
        if not (folder := question.model or node["model"]):
            raise ValueError("inference has no model: set its parameter model, or give --model")
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
