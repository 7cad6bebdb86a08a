"""The running stack: robot, inference and trajectory as processes, and an operator that talks to them.

Every wait also watches the processes: if one has died, the waiter gets NodeDied, decides what that means for
the episode, and revives it. A node that refuses its configuration or keeps dying ends the demo with its own
sentence and the end of its log.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.diagnostics import ERROR
from vla_accel_ros.tools.running.driven import Driven, NodeDied
from vla_accel_ros.tools.running.processes import NodeProcess, NodeProcesses, arguments

START_S = 120.0
STARTS = 4
NODES = ("sim_robot", "inference", "trajectory")


class Stack(Driven):
    """The nodes with their operator; a context manager that starts and ends them.

    parameters: node -> parameter -> value, overriding the package's parameter files. folder: for the logs.
    environment: of the processes; this process must be in the same ROS graph. tell: prints sentences for the
    user.
    """

    def __init__(
        self,
        contract: Contract,
        parameters: dict[str, dict[str, object]],
        folder: Path,
        environment: dict[str, str],
        tell: Callable[[str], None],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # A fresh state folder, so that a hold of an earlier run does not persist.
        self._state = tempfile.TemporaryDirectory(prefix="vla_accel_ros-demo-")
        environment = {**environment, "XDG_STATE_HOME": self._state.name}
        self.processes = NodeProcesses(
            [
                NodeProcess(
                    name, arguments(name, parameters.get(name, {})), environment, folder / f"{name}.log"
                )
                for name in NODES
            ]
        )
        self._tell, self._contract = tell, contract

    def __enter__(self) -> Stack:
        with contextlib.ExitStack() as undo:
            undo.callback(self.processes.sweep)
            undo.callback(self.processes.end)
            self.processes.start()
            self.operator = Operator(self._contract)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.end()
        self.operator.close()
        self.processes.sweep()
        self._state.cleanup()

    def wait_until_driving(self) -> None:
        """Return when new trajectories reach the robot; an instruction must have been given.

        Raises RuntimeError, with the sentence and the last log lines of a node that cannot start.
        """
        since_ns = self.operator.now_ns()

        def driving() -> bool:
            self._raise_if_refused()
            sent = self.operator.sent
            return bool(sent) and sent[-1].received_ns > since_ns

        try:
            self.wait(driving, START_S, "trajectory")
        except NodeDied as died:
            self._give_up(
                self.processes[died.name], f"{self.processes[died.name].how_it_ended()} while starting"
            )
        except TimeoutError:
            self._give_up(self._slowest(), f"was not ready within {START_S:.0f} s")
        self.processes.note_shared_memory()

    def revive(self, name: str) -> None:
        """Restart a dead node, and return when the robot is driven again."""
        node = self.processes[name]
        if node.starts >= STARTS:
            self._give_up(node, f"{node.how_it_ended()} for the {node.starts}. time")
        self._tell(f"{name} {node.how_it_ended()}: starting it again")
        node.start()
        self.call(self.operator.resume)
        self.wait_until_driving()

    def raise_if_dead(self) -> None:
        """See Driven."""
        for node in self.processes.dead():
            raise NodeDied(node.name)

    def _raise_if_refused(self) -> None:
        for item, line in self.operator.diagnostics.items():
            name = item.partition(":")[0]
            if line.level == ERROR and name in NODES:
                self._give_up(self.processes[name], line.message)

    def _slowest(self) -> NodeProcess:
        """Return the node that the others wait for."""
        operator = self.operator
        name = "trajectory" if operator.chunks else "inference" if operator.measured else "sim_robot"
        return self.processes[name]

    def _give_up(self, node: NodeProcess, why: str) -> None:
        raise RuntimeError(f"{node.name} {why}; the end of {node.log}:\n{node.last_words()}")
