"""The processes of the fleet: the scheduler, and of each robot its simulated arm and its own two nodes.

Whatever has ended is started again after RESPAWN_S, as launch files do it; a process that ends again and
again by itself ends the demo, with the end of its log. All live in simulated time (use_sim_time), which is
slower than real time where the machine is (pace). Ten processes share two cores, so cameras and joints come
at the rates below, of simulated time, and pictures have the size that the policy computes with.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from vla_accel_ros.nodes.environment import demo_contract, demo_model
from vla_accel_ros.tools.running.processes import NodeProcess, NodeProcesses, arguments

RESPAWN_S = 2.0
STARTS = 4
STARTING_S = 10.0
"""How long a process loads before it does anything."""
SCHEDULER = "fleet_scheduler"
SIM, OWN = "sim_robot", ("fleet_inference", "trajectory")
"""The arm, which goes on when its computer does not; and what runs on that."""
SENSORS: dict[str, object] = {"image_width": 112, "image_height": 112, "camera_hz": 10.0, "joint_hz": 60.0}
RATES_HZ = {"cameras": 10, "joint_states": 50}
DENOISE_STEPS = 5
ADMISSION = {"most_load": 1.0, "least_rate": 0.1}
"""The scheduler measures in real time, and after a kill beside busy robots: fewer chunks than it will make in
a second of simulated time."""
ASKING = {"fleet_ask_at_s": 1.0, "fleet_chunks_per_s": 4.0}
"""Of a robot. A chunk lasts 1.07 s, but is replaced by one of newer images four times a second: with fewer an
arm lags behind what it is to follow."""
STALE_S = 0.25


@dataclass(frozen=True)
class Death:
    """A process ended. at_s: noticed, by time.monotonic(); killed: by us."""

    name: str
    at_s: float
    killed: bool


class Fleet:
    """All processes; a context manager that starts the scheduler, and leaves nothing.

    names: the robots' namespaces. policy: of the scheduler. folder: for logs and the contract. environment:
    of the processes. tell: gets sentences for the user. `deaths` are in the order in which they were noticed.
    """

    def __init__(
        self,
        names: list[str],
        policy: str,
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
        of_scheduler = {"model": str(demo_model()), "denoise_steps": DENOISE_STEPS, "seed": seed}
        of_scheduler |= {"policy": policy, "stale_s": STALE_S, **ADMISSION}
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
        """When the scheduler has measured how fast it is."""
        for node in self.processes.nodes:
            if node.name != SCHEDULER:
                node.start()

    def kill(self, *names: str) -> float:
        """SIGKILL; returns when, by time.monotonic()."""
        self.processes.note_shared_memory()
        self._killed |= set(names)
        at_s = time.monotonic()
        for name in names:
            self.processes[name].kill()
        return at_s

    def tend(self) -> None:
        """Notice what has ended, and start it again when it is time. Raises RuntimeError, with the end of its
        log, for what ended by itself too often."""
        now_s = time.monotonic()
        for node in self.processes.dead():
            if node.name not in self._due:
                killed = node.name in self._killed
                self._killed.discard(node.name)
                own = sum(death.name == node.name and not death.killed for death in self.deaths)
                if not killed and own + 1 >= STARTS:
                    why = f"{node.name} {node.how_it_ended()} for the {own + 1}. time"
                    raise RuntimeError(f"{why}; the end of {node.log}:\n{node.last_words()}")
                self.deaths.append(Death(node.name, now_s, killed))
                self._due[node.name] = now_s + RESPAWN_S
                self._tell(f"{node.name} {node.how_it_ended()}: it is started again in {RESPAWN_S:.0f} s")
            elif now_s >= self._due[node.name]:
                del self._due[node.name]
                self._started_s[node.name] = now_s
                node.start()

    def whole(self, namespace: str) -> bool:
        """Whether all that a robot needs has been running for a while."""
        since_s = time.monotonic() - STARTING_S
        needed = {SCHEDULER, *(process_name(namespace, node) for node in (SIM, *OWN))}
        return not any(name in self._due or self._started_s.get(name, since_s) > since_s for name in needed)

    def seen(self, namespace: str) -> int:
        """How many processes that a robot needs have ended so far."""
        return len(self._of(namespace))

    def newest_deaths(self, namespace: str, count: int) -> list[str]:
        """The names of the newest of those."""
        return self._of(namespace)[-count:]

    def _of(self, namespace: str) -> list[str]:
        needed = {SCHEDULER, *(process_name(namespace, node) for node in (SIM, *OWN))}
        return [death.name for death in tuple(self.deaths) if death.name in needed]


def process_name(namespace: str, node: str) -> str:
    """Of a robot's node."""
    return f"{namespace.strip('/')}/{node}"


def slower_contract(contract: Path, file: Path) -> Path:
    """Write to `file` the same contract with RATES_HZ; returns it."""
    data = yaml.safe_load(contract.read_text())
    for camera in data["cameras"].values():
        camera["rate_hz"] = RATES_HZ["cameras"]
    data["joint_states"]["rate_hz"] = RATES_HZ["joint_states"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file.resolve()
