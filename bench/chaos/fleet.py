"""The whole fleet of a run: robots, scheduler, network and their processes, started, driven and ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException
from rclpy.signals import SignalHandlerOptions

from chaos.model import statistics_of, write_contract, write_model
from chaos.network import USUAL, Network, Weather
from chaos.processes import Process
from chaos.robot import Robot
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.running.executor import DirectExecutor

LOOK_S = 2.0
PERSON_S = 0.5
"""How long a robot waits for a person before one comes."""
INSTRUCTION = "reach the red block"
OFFSETS_S = (2.0, -2.0, 0.0, 2.0)
"""How far the robots' clocks are ahead of the scheduler's."""


class Fleet:
    """A context manager. folder: for logs and files; environment: of the processes, in whose graph this
    process is. respawn_s: how long a dead process stays dead, as with launch files."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        robots: int,
        seed: int,
        weather: Weather = USUAL,
        respawn_s: float = 0.5,
        lead_s: float = 0.05,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.respawn_s = respawn_s
        self.diagnostics: dict[str, dict[str, str]] = {}
        self._context = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node("network", context=self._context)
        path = write_contract(folder / "contract.yaml")
        model = write_model(folder / "model", robots)
        contract = Contract.load(path)
        names = [f"/robot{number}" for number in range(robots)]
        self.network = Network(self.node, names, seed, weather)
        self.robots: dict[str, Robot] = {}
        self.processes: dict[str, Process] = {}
        self._looked_s = 0.0
        environment = {**environment, "XDG_STATE_HOME": str(folder / "state")}
        common = {"autostart": True, "contract": str(path)}

        def process(name: str, module: str, namespace: str, offset_s: float, **parameters: object) -> None:
            remaps = Network.renamed() if module == "fleet_inference" else {}
            full, parameter_values = f"vla_accel_ros.nodes.{module}", {**common, **parameters}
            self.processes[name] = Process(
                name, full, namespace, parameter_values, remaps, offset_s, environment, folder
            )

        for number, (name, offset_s) in enumerate(zip(names, OFFSETS_S)):
            node = rclpy.create_node("drivers", namespace=name, context=self._context)
            self.robots[name] = Robot(node, number, contract, offset_s)
            settings = {"statistics": statistics_of(number), "chunk_messages_hz": 0.0}
            process(f"{name}/inference", "fleet_inference", name, offset_s, engine="fleet", **settings)
            process(f"{name}/trajectory", "trajectory", name, offset_s, lead_s=lead_s)
        self.scheduler = "scheduler"
        settings = {"model": str(model), "statistics": statistics_of(0), "steps": 2, "gone_s": 6.0}
        process(self.scheduler, "fleet", "", 0.0, staggered=2, torch_threads=1, **settings)
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.REPORT)
        self._executor = DirectExecutor(context=self._context)
        for ros_node in (self.node, *(robot.node for robot in self.robots.values())):
            self._executor.add_node(ros_node)
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def __enter__(self) -> Fleet:
        self._thread.start()
        for process in self.processes.values():
            process.start()
        self.instruct(INSTRUCTION)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._executor.shutdown()
        self._thread.join()
        for node in (self.node, *(robot.node for robot in self.robots.values())):
            node.destroy_node()
        self._context.try_shutdown()

    def end(self) -> dict[str, int]:
        """End all processes; returns their exit statuses."""
        for process in self.processes.values():
            process.wanted = False
        return {name: process.end() for name, process in self.processes.items()}

    def instruct(self, words: str) -> None:
        """Give all robots this instruction."""
        for robot in self.robots.values():
            robot.instruct(words)

    def tick(self) -> None:
        """Do what launch files and a person do: restart dead processes, resume robots that wait for it."""
        for process in self.processes.values():
            process.tick(self.respawn_s)
        now_s = time.monotonic()
        for robot in self.robots.values():
            waits = any("~/resume" in reason for reason in robot.reasons)
            if waits and now_s - robot.told[-1][0] * 1e-9 > PERSON_S:
                robot.resume()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            for process in self.processes.values():
                process.look()

    def until(self, condition: Callable[[], object], timeout_s: float) -> bool:
        """Tick until the condition holds; returns False after the timeout."""
        until_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until_s:
                return False
            self.tick()
            time.sleep(0.01)
        return True

    def moving(self, names: Mapping[str, int]) -> bool:
        """Return whether each of these robots moves by a chunk computed after the given time (steady ns)."""
        return all(self.robots[name].goes_on_ns(since_ns) is not None for name, since_ns in names.items())

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for line in message.status:
            if line.name.startswith("fleet_scheduler: "):
                values = {pair.key: pair.value for pair in line.values}
                report = {"message": line.message, "heard_s": str(time.monotonic()), **values}
                self.diagnostics[line.name.removeprefix("fleet_scheduler: ")] = report

    def _spin(self) -> None:
        with suppress(ExternalShutdownException):
            self._executor.spin()
