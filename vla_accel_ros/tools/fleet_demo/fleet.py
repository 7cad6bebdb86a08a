"""The processes of the demo: the scheduler and, for each robot, its simulated arm and its own two nodes.

A process that ended is started again after RESPAWN_S, as launch files do. One that fails by itself STARTS
times ends the demo with the end of its log. All nodes use simulated time (use_sim_time), which runs slower
than real time where the machine needs that (pace). Ten processes share two cores, so cameras and joints
publish at the low rates below, in simulated time, and images have the size that the policy takes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from vla_accel_ros.nodes.running.environment import demo_contract, demo_model
from vla_accel_ros.tools.options import write_text
from vla_accel_ros.tools.running.processes import NodeProcess, NodeProcesses, arguments

RESPAWN_S = 2.0
STARTS = 4
STARTING_S = 10.0
"""Seconds that a process loads before it works."""
SCHEDULER = "fleet_scheduler"
SIM, OWN = "sim_robot", ("fleet_inference", "trajectory")
"""The simulated arm, which keeps running when the robot's computer fails, and the nodes on that computer."""
SENSORS: dict[str, object] = {"image_width": 112, "image_height": 112, "camera_hz": 10.0, "joint_hz": 60.0}
RATES_HZ = {"cameras": 10, "joint_states": 50}
DENOISE_STEPS = 5
ADMISSION = {"most_load": 1.0, "least_rate": 0.1}
"""The scheduler measures in real time. After a kill, beside busy robots, it measures fewer chunks a second
than it makes in a second of simulated time, so the limits are loose."""
ASKING = {"fleet_ask_at_s": 1.0, "fleet_chunks_per_s": 4.0}
"""A robot's requests. A chunk lasts 1.07 s but is replaced four times a second by one from newer images: with
fewer chunks an arm lags behind a moving target."""
STALE_S = 0.25


@dataclass(frozen=True)
class Death:
    """A process that ended. at_s: when that was noticed, by time.monotonic(); killed: whether the demo killed
    it."""

    name: str
    at_s: float
    killed: bool


class Fleet:
    """All processes, as a context manager: entering starts the scheduler, leaving ends everything.

    names: the robots' namespaces. rule: the scheduler's. folder: for logs and the contract. environment:
    the processes' variables. tell: gets sentences for the user. `deaths` lists ended processes in the order
    noticed.
    """

    def __init__(
        self,
        names: list[str],
        rule: str,
        seed: int,
        folder: Path,
        environment: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        self.contract = slower_contract(demo_contract(), folder / "contract.yaml")
        self._tell, self._folder = tell, folder
        self._state = tempfile.TemporaryDirectory(prefix="vla_accel_ros-demo-")
        self._environment = {**environment, "XDG_STATE_HOME": self._state.name}
        simulated = {"use_sim_time": True}
        shared = {"autostart": True, "contract": str(self.contract), **simulated}
        of_scheduler = {"model": str(demo_model()), "steps": DENOISE_STEPS, "seed": seed}
        of_scheduler |= {"rule": rule, "stale_s": STALE_S, **ADMISSION}
        nodes = [self._node("", "fleet", {**shared, **of_scheduler})]
        for name in names:
            nodes.append(self._node(name, SIM, {**SENSORS, **simulated}))
            nodes.append(self._node(name, OWN[0], {**shared, "engine": "fleet", **ASKING}))
            nodes.append(self._node(name, OWN[1], {**shared, "lead_s": 0.05}))
        self.processes = NodeProcesses(nodes)
        self.deaths: list[Death] = []
        self._killed: set[str] = set()
        self._due: dict[str, float] = {}
        self._started_s: dict[str, float] = {}

    def _node(self, namespace: str, node: str, parameters: dict[str, object]) -> NodeProcess:
        name = process_name(namespace, node) if namespace else SCHEDULER
        log = self._folder / "logs" / f"{name.replace('/', '-')}.log"
        given = arguments(node, parameters, namespace)
        return NodeProcess(name, given, self._environment, log, module=node)

    def __enter__(self) -> Fleet:
        try:
            self.processes[SCHEDULER].start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.end()
        self.processes.sweep()
        self._state.cleanup()

    def start_robots(self) -> None:
        """Start the robots' processes; call it when the scheduler has measured its speed."""
        for node in self.processes.nodes:
            if node.name != SCHEDULER:
                node.start()

    def kill(self, *names: str) -> float:
        """Send SIGKILL to the named processes; return the time, by time.monotonic()."""
        self.processes.note_shared_memory()
        self._killed |= set(names)
        at_s = time.monotonic()
        for name in names:
            self.processes[name].kill()
        return at_s

    def tend(self) -> None:
        """Notice processes that ended, and restart them when due.

        Raises RuntimeError with the end of the log if a process ended by itself STARTS times.
        """
        now_s = time.monotonic()
        for node in self.processes.dead():
            if node.name not in self._due:
                killed = node.name in self._killed
                self._killed.discard(node.name)
                own = sum(death.name == node.name and not death.killed for death in self.deaths)
                if not killed and own + 1 >= STARTS:
                    sentence = f"{node.name} {node.how_it_ended()} for the {own + 1}. time"
                    raise RuntimeError(f"{sentence}; the end of {node.log}:\n{node.last_words()}")
                self.deaths.append(Death(node.name, now_s, killed))
                self._due[node.name] = now_s + RESPAWN_S
                self._tell(f"{node.name} {node.how_it_ended()}: it is started again in {RESPAWN_S:.0f} s")
            elif now_s >= self._due[node.name]:
                del self._due[node.name]
                self._started_s[node.name] = now_s
                node.start()

    def whole(self, namespace: str) -> bool:
        """Whether every process that a robot needs has been running for STARTING_S."""
        since_s = time.monotonic() - STARTING_S
        needed = {SCHEDULER, *(process_name(namespace, node) for node in (SIM, *OWN))}
        return not any(name in self._due or self._started_s.get(name, since_s) > since_s for name in needed)

    def seen(self, namespace: str) -> int:
        """Return how many processes that a robot needs have ended so far."""
        return len(self._of(namespace))

    def newest_deaths(self, namespace: str, count: int) -> list[str]:
        """Return the names of the last `count` of those."""
        return self._of(namespace)[-count:]

    def _of(self, namespace: str) -> list[str]:
        needed = {SCHEDULER, *(process_name(namespace, node) for node in (SIM, *OWN))}
        return [death.name for death in tuple(self.deaths) if death.name in needed]


def process_name(namespace: str, node: str) -> str:
    """Return the name of a robot's process."""
    return f"{namespace.strip('/')}/{node}"


def slower_contract(contract: Path, file: Path) -> Path:
    """Write the contract to `file` with the rates of RATES_HZ; return its path."""
    data = yaml.safe_load(contract.read_text())
    for camera in data["cameras"].values():
        camera["rate_hz"] = RATES_HZ["cameras"]
    data["joint_states"]["rate_hz"] = RATES_HZ["joint_states"]
    write_text(file, yaml.safe_dump(data, sort_keys=False))
    return file.resolve()
