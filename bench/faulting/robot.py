"""The demo's robot and nodes with a relay between them: started, set going, ended, and inspected."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import yaml
from rclpy.parameter import Parameter

from faulting.relay import Relay
from vla_accel_msgs.msg import Motion
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model, share_path
from vla_accel_ros.tools.running.processes import NodeProcess, NodeProcesses

T = TypeVar("T")
NODES = ("sim_robot", "inference", "trajectory")
START_S = 150.0
MOVING_RAD_S, REST_RAD_S = 0.2, 0.03
REST_NS = 400_000_000
HOME = {"shoulder_pan": 0.0, "shoulder_lift": 0.0, "elbow_flex": 1.3, "wrist_flex": 1.3, "wrist_roll": 0.0}


class Stalled(RuntimeError):
    """The robot does not move although nothing should be wrong."""


class Robot:
    """The stack under test. A context manager that starts and ends it.

    folder: for logs. environment: of the processes; this process must be in the same graph. parameters: node
    -> parameter -> value.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        parameters: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
        sim_time: bool = False,
    ) -> None:
        # What holds the robot is kept in a file; a run leaves none behind.
        self.environment = {**environment, "XDG_STATE_HOME": str(folder)}
        self.folder, self.sim_time = folder, sim_time
        self.began_ns, self.orphans = 0, list[int]()
        self.restarted_ns: list[int] = []
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "contract.yaml"
        text = yaml.safe_load(demo_contract().read_text())
        names = {joint["name"] for joint in text["joints"]}
        text["home"] = {name: at for name, at in HOME.items() if name in names}
        file.write_text(yaml.safe_dump(text))
        self.contract = Contract.load(file)
        self.relay = Relay(self.contract, sim_time)
        shared = {"autostart": True, "contract": str(file)}
        self.parameters: dict[str, dict[str, object]] = {
            "sim_robot": {},
            "inference": {**shared, "model": str(demo_model()), "steps": 5},
            "trajectory": dict(shared),
        }
        for name in NODES:
            self.parameters[name] |= {"use_sim_time": sim_time, **parameters.get(name, {})}
        self.processes = NodeProcesses([self.process(name) for name in NODES])
        self.more: list[NodeProcess] = []

    def process(self, name: str, **parameters: object) -> NodeProcess:
        """Return the process of a node, not started; further parameters override the usual ones."""
        log = self.folder / f"{name}.log"
        return NodeProcess(name, self.arguments(name, **parameters), self.environment, log)

    def arguments(self, name: str, **parameters: object) -> list[str]:
        """Return a node's arguments after --ros-args."""
        file = "config/sim.yaml" if name == "sim_robot" else "config/params.yaml"
        words = ["--params-file", str(share_path(file))]
        for key, value in {**self.parameters.get(name, {}), **parameters}.items():
            words += ["-p", f"{key}:={json.dumps(value)}"]
        for old, new in self.relay.renamed(name).items():
            words += ["-r", f"{old}:={new}"]
        return words

    def __enter__(self) -> Robot:
        self.relay.__enter__()
        self.processes.start()
        self.operator = Operator(self.contract)
        if self.sim_time:
            self.operator.node.set_parameters([Parameter("use_sim_time", value=True)])
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.nodes += self.more
        self.processes.end()
        self.operator.close()
        self.relay.__exit__()
        self.processes.sweep()

    def set_going(self, seed: int) -> None:
        """Make a new scene, lift all stops, and get the arm moving. Raises Stalled."""
        for node in self.processes.dead():
            node.start()
        self.relay.well()
        self.poll(lambda: self.relay.states, START_S, "joint states")
        self._stand()
        before_ns = self.relay.time_ns()
        instruction = self.asked(lambda: self.operator.reset("follow", seed))
        if instruction is None:
            raise Stalled("sim_robot does not answer ~/reset")
        self.restarted_ns = [self._put_elsewhere_ns(before_ns)]
        self.operator.instruct(str(instruction))
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            self.asked(lambda: self.operator.resume(2.0))
            if self.moves_within(6.0):
                return
        raise Stalled(f"does not move: {'; '.join(self.reasons())}")

    def _stand(self) -> None:
        """Hold the robot, if its node answers: what it sends after a new scene would be of the one before."""
        since_ns = self.relay.time_ns()
        self.asked(self.operator.hold)
        with suppress(Stalled):
            self.poll(lambda: self.rested_at_ns(since_ns), 3.0, "standstill")

    def _put_elsewhere_ns(self, since_ns: int) -> int:
        """When a new scene put the joints elsewhere: their longest step since then. The answer to the reset
        comes later, and the node may have sent its first trajectory before it."""
        answered_ns = self.relay.time_ns()
        self.poll(lambda: self.after(answered_ns), START_S, "joint states of the new scene")
        states = self.after(since_ns)
        if len(states) < 2:
            return answered_ns
        steps = np.abs(np.diff([position for _, position, _ in states], axis=0)).max(axis=1)
        first = int(steps.argmax()) + 1  # stamps may go back there
        return max(states[first][0], 1 + max(t_ns for t_ns, *_ in states[:first]))

    def asked(self, question: Callable[[], T]) -> T | str | None:
        """Return the answer of a service, the reason of its refusal, or None."""
        try:
            return question()
        except ValueError as refusal:
            return str(refusal)
        except TimeoutError:
            return None

    def poll(self, condition: Callable[[], T], timeout_s: float, what: str) -> T:
        """Wait for a true value of the function and return it. Raises Stalled."""
        until = time.monotonic() + timeout_s
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > until:
                raise Stalled(f"no {what} within {timeout_s:g} s")
            time.sleep(0.02)

    def moves_within(self, timeout_s: float) -> bool:
        """Return whether the arm moves within this time."""
        since_ns = self.relay.time_ns()
        try:
            return bool(self.poll(lambda: self.moved_at_ns(since_ns), timeout_s, "motion"))
        except Stalled:
            return False

    def moved_at_ns(self, since_ns: int) -> int | None:
        """Return when the measured joints first moved after the given time."""
        for t_ns, _, velocity in self.after(since_ns):
            if np.abs(velocity[:5]).max() > MOVING_RAD_S:
                return t_ns
        return None

    def under_way(self) -> bool:
        """Return whether chunks move it fast at present."""
        motions = self.operator.motions
        now_ns = self.relay.time_ns()
        fast = self.moved_at_ns(now_ns - 50_000_000) is not None
        sent = any(t_ns > now_ns - 700_000_000 for t_ns, *_ in self.relay.sent[-20:])
        return bool(motions and motions[-1].state == Motion.RUNNING and fast and sent)

    def rested_at_ns(self, since_ns: int) -> int | None:
        """Return when it first came to rest after the given time, for at least REST_NS."""
        rest_ns: int | None = None
        for t_ns, _, velocity in self.after(since_ns):
            if np.abs(velocity[:5]).max() > REST_RAD_S:
                rest_ns = None
            elif rest_ns is None:
                rest_ns = t_ns
            elif t_ns - rest_ns >= REST_NS:
                return rest_ns
        return None

    def after(self, since_ns: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Return the true joint states since the given time."""
        states = self.relay.states
        first = len(states)
        while first and states[first - 1][0] >= since_ns:
            first -= 1
        return states[first:]

    def reasons(self) -> list[str]:
        """Return the reasons of the newest `motion`."""
        motions = self.operator.motions
        return list(motions[-1].reasons) if motions else ["trajectory has told nothing"]

    @staticmethod
    def tell(sentence: str) -> None:
        """Print progress."""
        print(sentence, file=sys.stderr, flush=True)
