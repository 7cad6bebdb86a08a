"""One demo from start to end: start, play, stop, and only then write the results.

A signal ends it within a few seconds: the nodes stop, the summary of the played episodes is printed, and no
file is written, so that results are always of a complete run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.running.environment import demo_model
from vla_accel_ros.tools.demo import picture, summary
from vla_accel_ros.tools.demo.live import REFRESH_HZ, LiveView
from vla_accel_ros.tools.demo.plan import Options, episodes
from vla_accel_ros.tools.demo.play import Board, Player
from vla_accel_ros.tools.demo.stack import Stack
from vla_accel_ros.tools.options import write_figures, write_text
from vla_accel_ros.tools.running.graph import own_graph
from vla_accel_ros.tools.running.processes import ended_by_signals, resident_mb

# Two answers a second, so that a short episode has one; five steps, as in the policy's evaluation.
INFERENCE = {"steps": 5, "language_hz": 2.0}
MEMORY_EVERY_S = 60.0


def run(options: Options) -> int:
    """Return the exit status: 0, or 128 + number if a signal ended it. Raises RuntimeError, with one
    sentence, if a node cannot start or keeps dying; OSError if a file cannot be written."""
    with ended_by_signals(), contextlib.ExitStack() as closing:
        return Demo(options, closing).run()


class Demo:
    """The parts of one demo. closing: an exit stack for what must be closed at the end."""

    def __init__(self, options: Options, closing: contextlib.ExitStack) -> None:
        self._options, self._closing = options, closing
        self._contract = Contract.load(options.contract)
        self._arm = max((c.joints for c in self._contract.controllers), key=len)
        self._board = Board(wanted=options.episodes)
        self._console = Console(highlight=False, soft_wrap=True)
        self._cpu: dict[str, float] = {}
        self._memory: list[dict[str, float]] = []
        options.out.mkdir(parents=True, exist_ok=True)

    def run(self) -> int:
        stack = self._stack()
        ended_by = 0
        try:
            with self._watching() as watch, stack:
                watch(stack)
                self._play(stack)
        except KeyboardInterrupt as ending:
            ended_by = int(ending.args[0]) if ending.args else signal.SIGINT
        figures = summary.figures(self._board.played, stack.operator, self._cpu, self._memory)
        if not ended_by:
            self._write(figures)
        self._console.print(summary.table(figures))
        return 128 + ended_by if ended_by else 0

    def _stack(self) -> Stack:
        options = self._options
        environment = self._closing.enter_context(own_graph(options.domain))
        contract = options.contract
        if options.ring:
            contract = with_rings(options.contract, options.out / "contract.yaml")
        shared = {"autostart": True, "contract": str(contract.resolve())}
        model = str((options.model or demo_model()).resolve())
        parameters: dict[str, dict[str, object]] = {
            "inference": {**shared, "model": model, **INFERENCE, "seed": options.seed, "goal": options.goal},
            "trajectory": {**shared, "mode": options.mode},
            "sim_robot": {"ring": options.ring},
        }
        vla = sys.argv[0] if sys.argv[0].endswith("vla") else "vla"
        self._tell(f"look at it meanwhile: ROS_DOMAIN_ID={environment['ROS_DOMAIN_ID']} {vla} look")
        return Stack(self._contract, parameters, options.out / "logs", environment, self._tell)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[Callable[[Stack], None]]:
        """Show the live view if stdout is a terminal."""
        view = LiveView(self._board)

        def watch(stack: Stack) -> None:
            view.operator = stack.operator

        if self._options.headless or not self._console.is_terminal:
            self._tell("starting sim_robot, inference and trajectory")
            yield watch
        else:
            live = Live(get_renderable=view.render, console=self._console, refresh_per_second=REFRESH_HZ)
            with live:
                yield watch

    def _play(self, stack: Stack) -> None:
        options, player = self._options, Player(stack, self._board, self._arm)
        plans = episodes(options.tasks, options.seed)
        stack.operator.instruct((plan := next(plans)).task.instruction)
        stack.wait_until_driving()
        begun, used_s = time.monotonic(), time.process_time()
        for node in stack.processes.nodes:
            node.mark()
        try:
            while (options.episodes is None or plan.index < options.episodes) and (
                options.limit_s is None or time.monotonic() - begun < options.limit_s
            ):
                self._tell(summary.line(player.play(plan), options.episodes))
                stack.operator.forget()
                self._note_memory(stack, time.monotonic() - begun)
                plan = next(plans)
        finally:
            own = (time.process_time() - used_s) / (time.monotonic() - begun)
            shares = {"demo": own, **{node.name: node.cpu_share() for node in stack.processes.nodes}}
            self._cpu = {name: round(share, 3) for name, share in shares.items()}

    def _note_memory(self, stack: Stack, now_s: float) -> None:
        """Note the memory of each process after an episode, at most once a minute."""
        if not self._memory or now_s >= self._memory[-1]["at_s"] + MEMORY_EVERY_S:
            sizes = {node.name: node.memory_mb() for node in stack.processes.nodes}
            sizes = {"at_s": now_s, "demo": resident_mb(os.getpid()), **sizes}
            self._memory.append({name: round(value, 1) for name, value in sizes.items()})

    def _write(self, figures: dict[str, Any]) -> None:
        options = self._options
        document = {
            **figures,
            "seed": options.seed,
            "tasks": list(options.tasks),
            "mode": options.mode,
            "model": (options.model or demo_model()).name,
            **INFERENCE,
        }
        self._tell("drawing the picture")
        write_figures(document, options.out / "demo.json", options.json)
        picture.draw(options.out / "demo.png", self._board, figures, self._contract.joint_names)
        self._tell(f"demo.png, demo.json and logs are in {options.out}")

    def _tell(self, sentence: str) -> None:
        self._console.print(sentence, markup=False)
        sys.stdout.flush()


def with_rings(contract: Path, file: Path) -> Path:
    """Write to `file` a copy of the contract with every camera as a ring, `camera/<name>/frame`; returns it.

    The demo itself still watches the image topics, which the robot also publishes: only the nodes under test
    read the rings. The file is kept beside the results as a record.
    """
    data = yaml.safe_load(contract.read_text())
    for name, camera in data["cameras"].items():
        camera |= {"topic": f"camera/{name}/frame", "transport": "ring"}
    write_text(file, yaml.safe_dump(data, sort_keys=False))
    return file
