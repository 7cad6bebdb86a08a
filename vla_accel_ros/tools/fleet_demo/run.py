"""One fleet demo from beginning to end.

While it runs, the table of robots is that of `vla fleet top`, and as that made of /diagnostics alone. A
signal ends it within a few seconds: all processes go down, the summary of what was played is printed, and no
JSON is written.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.fleet_watcher import FleetWatcher
from vla_accel_ros.nodes.environment import demo_model
from vla_accel_ros.tools.demo import graph
from vla_accel_ros.tools.demo.run import ended_by_signals
from vla_accel_ros.tools.fleet import table
from vla_accel_ros.tools.fleet.board import Board
from vla_accel_ros.tools.fleet.top import LINES_EVERY_S
from vla_accel_ros.tools.fleet_demo import summary
from vla_accel_ros.tools.fleet_demo.faults import Faults
from vla_accel_ros.tools.fleet_demo.fleet import (
    ADMISSION,
    CHUNKS_HZ,
    DENOISE_STEPS,
    RATES_HZ,
    SCHEDULER,
    SENSORS,
    Fleet,
)
from vla_accel_ros.tools.fleet_demo.plan import Options
from vla_accel_ros.tools.fleet_demo.robot import START_S, Robot
from vla_accel_ros.tools.provenance import provenance

TICK_S = 0.2
PICTURE_AFTER_S = 4.5
"""After a robot was killed: by then its silence is seen."""
TITLE = "vla fleet-demo"


def run(options: Options) -> int:
    """Returns 0 if every robot did all its tasks, else 1; 128 + number when a signal ended it. Raises
    RuntimeError, in one sentence, when a process ends again and again or robots do not move."""
    with ended_by_signals(), contextlib.ExitStack() as closing:
        return FleetDemo(options, closing).run()


class FleetDemo:
    """The parts of one demo. closing: what must be closed in the end."""

    def __init__(self, options: Options, closing: contextlib.ExitStack) -> None:
        self._options, self._closing = options, closing
        self._console = Console(highlight=False, soft_wrap=True)
        self._board, self._robots = Board(), list[Robot]()
        self._faults: Faults | None = None
        self._told = Counter[str]()
        self._cpu: dict[str, float] = {}
        self._pictured = options.svg is None
        self._seconds = 0.0

    def run(self) -> int:
        options = self._options
        domain = options.domain
        if domain is None:
            domain, lock = graph.claim_domain()
            self._closing.enter_context(lock)
        environment = graph.graph_environment(domain)
        graph.enter(environment)
        fleet = Fleet(options.names, options.policy, options.seed, options.out, environment, self._tell)
        ended_by = 0
        self._tell(f"starting {len(fleet.processes.nodes)} nodes in ROS domain {domain}, cameras at 10 Hz")
        try:
            with self._showing() as show, contextlib.ExitStack() as undo:
                undo.callback(fleet.processes.sweep)
                undo.enter_context(fleet)
                self._play(fleet, undo, show)
        except KeyboardInterrupt as ending:
            ended_by = int(ending.args[0]) if ending.args else signal.SIGINT
        found = self._figures()
        if not ended_by:
            self._write(found)
        self._console.print(summary.tables(found))
        if ended_by:
            return 128 + ended_by
        return 0 if all(robot["succeeded"] for robot in found["robots"].values()) else 1

    def _play(self, fleet: Fleet, undo: contextlib.ExitStack, show: Callable[[], None]) -> None:
        options, contract = self._options, Contract.load(fleet.contract)
        watcher = undo.enter_context(FleetWatcher(self._hear))
        self._wait_for_scheduler(fleet, watcher, show)
        fleet.start_robots()
        for number, name in enumerate(options.names):
            robot = Robot(name, number, fleet, contract)
            self._robots.append(robot)
            undo.callback(robot.end)
        begun_s = time.monotonic()
        self._faults = faults = Faults(fleet, self._robots, options.kill, self._tell)
        try:
            for robot in self._robots:
                robot.begin(options.episodes, options.seed, lambda: not faults.over)
            while not all(robot.over for robot in self._robots):
                watcher.listen(TICK_S)
                fleet.tend()
                faults.step()
                self._report(fleet)
                show()
        finally:
            self._seconds = time.monotonic() - begun_s
            shares = defaultdict[str, float](float)
            for node in fleet.processes.nodes:
                shares[node.name.rpartition("/")[2]] += node.cpu_share()
            self._cpu = dict(shares)

    def _wait_for_scheduler(self, fleet: Fleet, watcher: FleetWatcher, show: Callable[[], None]) -> None:
        end_s = time.monotonic() + START_S
        while not (heard := self._board.scheduler(time.monotonic())).well:
            watcher.listen(TICK_S)
            fleet.tend()
            show()
            if time.monotonic() > end_s:
                node = fleet.processes[SCHEDULER]
                why = f"the scheduler was not ready within {START_S:.0f} s ({heard.said})"
                raise RuntimeError(f"{why}; the end of {node.log}:\n{node.last_words()}")

    def _hear(self, lines: Any) -> None:
        self._board.hear(lines, time.monotonic())

    def _report(self, fleet: Fleet) -> None:
        """New episodes; whoever cannot go on ends all."""
        for robot in self._robots:
            for played in robot.played[self._told[robot.name] :]:
                self._told[robot.name] += 1
                fleet.processes.note_shared_memory()
                self._tell(summary.line(robot.name, played))
            if robot.error is not None:
                raise robot.error
        if not self._pictured and self._faults is not None and self._faults.faults:
            first = self._faults.faults[0]
            if self._faults.now_s - first.at_s > PICTURE_AFTER_S and self._options.svg is not None:
                table.write_svg(self._board, time.monotonic(), self._options.svg, TITLE)
                self._pictured = True

    @contextlib.contextmanager
    def _showing(self) -> Iterator[Callable[[], None]]:
        """The live table, or lines of it now and then."""
        if not self._options.headless and self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False) as live:
                yield lambda: live.update(table.drawn(self._board, time.monotonic(), TITLE), refresh=True)
            return
        due_s = time.monotonic() + LINES_EVERY_S

        def show() -> None:
            nonlocal due_s
            now_s = time.monotonic()
            if now_s >= due_s:
                due_s = now_s + LINES_EVERY_S
                for line in table.lines(self._board, now_s):
                    self._tell(f"  {line}")

        yield show

    def _figures(self) -> dict[str, Any]:
        rows = self._board.rows(time.monotonic())
        stalled_s = {row.robot: row.stalled_s or 0.0 for row in rows}
        faults = self._faults.faults if self._faults is not None else []
        return summary.figures(self._robots, self._options.episodes, faults, stalled_s, self._cpu)

    def _write(self, found: dict[str, Any]) -> None:
        options = self._options
        document = {
            **found,
            "seconds": round(self._seconds, 1),
            "seed": options.seed,
            "policy": options.policy,
            "model": demo_model().name,
            "denoise_steps": DENOISE_STEPS,
            "admission": ADMISSION,
            "fleet_chunks_per_s": CHUNKS_HZ,
            "sensors": {**SENSORS, **{f"{name}_expected_hz": rate for name, rate in RATES_HZ.items()}},
            **provenance(),
        }
        text = json.dumps(document, indent=1) + "\n"
        for path in filter(None, (options.out / "fleet_demo.json", options.json)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def _tell(self, sentence: str) -> None:
        self._console.print(sentence, markup=False)
        sys.stdout.flush()
