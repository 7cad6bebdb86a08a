"""Starts the nodes as processes, as users do, gives them commands and waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from std_msgs.msg import String

from vla_accel_msgs.msg import LoopStats, Motion, Session
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.recording.robots import of_robot
from vla_accel_ros.tools.running.processes import NodeProcess, NodeProcesses, arguments

NODES = ("inference", "trajectory")
START_S = 480.0
"""Timeout to load a model, compile its kernels and capture its stages."""
RUN_S = 20.0
"""Timeout from an instruction to motion."""
LOOK_S = 0.1


def node_processes(
    parameters: Mapping[str, Mapping[str, object]], environment: Mapping[str, str], folder: Path
) -> NodeProcesses:
    """Not started yet. folder: of their logs and state."""
    environment = {**environment, "XDG_STATE_HOME": str(folder / "state")}
    return NodeProcesses(
        [
            NodeProcess(name, arguments(name, dict(parameters[name])), environment, folder / f"{name}.log")
            for name in NODES
        ]
    )


class Watch(ClientNode):
    """Collects what the nodes report. loops: the newest statistics of each loop; diagnostics: the newest
    lines; motion: the newest state; stops: when the robot did not run, on the monotonic clock, and why."""

    def __init__(self, processes: NodeProcesses) -> None:
        super().__init__()
        self._processes = processes
        self.loops: dict[str, LoopStats] = {}
        self.diagnostics: dict[str, DiagnosticStatus] = {}
        self.motion: Motion | None = None
        self.stops: list[tuple[int, str]] = []
        self._session: Session | None = None
        self._instruction = self._node.create_publisher(String, "instruction", qos.LATCHED)
        subscribe = self._node.create_subscription
        subscribe(LoopStats, "loop_stats", self._on_loop, qos.REPORT)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.REPORT)
        subscribe(Motion, "motion", self._on_motion, qos.ALL_LATCHED)
        subscribe(Session, "session", self._on_session, qos.LATCHED)

    def start(self, instruction: str) -> None:
        """Return when chunks move the robot and the nodes have nothing else to do.

        Raises RuntimeError, with the end of its log, if a node ends or refuses; TimeoutError if it takes too
        long.
        """
        self._instruction.publish(String(data=instruction))
        # Its checksum is what inference computes last, beside its work.
        self._until(lambda: self._session is not None, START_S, "session of the inference node")
        self._until(self._runs, RUN_S, "motion")

    def spin(self, seconds: float) -> None:
        """Listen for so long."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0.0:
            self._raise_if_ended()
            self._wait(lambda: False, min(left_s, LOOK_S))

    def misses(self) -> dict[str, int]:
        """Missed deadlines so far, of each loop."""
        return {name: int(stats.misses) for name, stats in self.loops.items()}

    def warnings(self) -> dict[str, str]:
        """The lines of diagnostics that are not OK."""
        lines = self.diagnostics.items()
        return {name: line.message for name, line in lines if line.level != DiagnosticStatus.OK}

    def _runs(self) -> bool:
        return self.motion is not None and self.motion.state == Motion.RUNNING

    def _until(self, condition: Callable[[], bool], patience_s: float, what: str) -> None:
        until_s = time.monotonic() + patience_s
        while not self._wait(condition, LOOK_S):
            self._raise_if_ended()
            if time.monotonic() > until_s:
                raise TimeoutError(f"no {what} within {patience_s:g} s; {self._last_words()}")

    def _raise_if_ended(self) -> None:
        for node in self._processes.dead():
            raise RuntimeError(f"{node.name} {node.how_it_ended()}; the end of its log:\n{node.last_words()}")
        for name, line in self.diagnostics.items():
            if line.level == DiagnosticStatus.ERROR:
                raise RuntimeError(f"{name}: {line.message}")

    def _last_words(self) -> str:
        logs = [f"the end of the log of {node.name}:\n{node.last_words()}" for node in self._processes.nodes]
        return "\n".join(logs)

    def _on_loop(self, message: LoopStats) -> None:
        self.loops[message.loop] = message

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.diagnostics |= of_robot("", message.status)

    def _on_motion(self, message: Motion) -> None:
        self.motion = message
        if message.state != Motion.RUNNING:
            self.stops.append((time.monotonic_ns(), "; ".join(message.reasons)))

    def _on_session(self, message: Session) -> None:
        self._session = message
