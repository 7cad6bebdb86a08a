"""Runs one fleet demo from start to end.

Its live table is that of `vla fleet top`, also made from /diagnostics alone. A signal ends the demo within a
few seconds: all processes end, the summary so far is printed, and no JSON is written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.client_node import FleetWatcher, SimClock
from vla_accel_ros.nodes.running.environment import demo_model
from vla_accel_ros.tools.fleet import table
from vla_accel_ros.tools.fleet.board import Board
from vla_accel_ros.tools.fleet.top import LINES_EVERY_S
from vla_accel_ros.tools.fleet_demo import pace, summary
from vla_accel_ros.tools.fleet_demo.faults import Faults
from vla_accel_ros.tools.fleet_demo.fleet import (
    ADMISSION,
    ASKING,
    DENOISE_STEPS,
    RATES_HZ,
    SCHEDULER,
    SENSORS,
    Fleet,
)
from vla_accel_ros.tools.fleet_demo.plan import Options
from vla_accel_ros.tools.fleet_demo.robot import START_S, Robot
from vla_accel_ros.tools.options import write_figures
from vla_accel_ros.tools.running.graph import own_graph
from vla_accel_ros.tools.running.processes import ended_by_signals

TICK_S = 0.2
PICTURE_AFTER_S = 4.5
"""Seconds after the first kill: by then the table shows the robot's silence."""
TITLE = "vla fleet-demo"
LOWERED = (
    f"cameras send {SENSORS['image_width']} x {SENSORS['image_height']} pixels at {RATES_HZ['cameras']} Hz, "
    f"a chunk takes {DENOISE_STEPS} denoising steps, and simulated time is as slow as the machine needs"
)
"""What the demo lowers compared with a real robot."""


def run(options: Options) -> int:
    """Run the demo. Returns 0 if every robot did all its tasks, else 1, or 128 + the number of the signal
    that ended it.

    Raises RuntimeError, in one sentence, if a process keeps ending or robots do not move.
    """
    with ended_by_signals(), contextlib.ExitStack() as closing:
        return FleetDemo(options, closing).run()


class FleetDemo:
    """One demo. closing: where it registers what must be closed at the end."""

    def __init__(self, options: Options, closing: contextlib.ExitStack) -> None:
        self._options, self._closing = options, closing
        self._console = Console(highlight=False, soft_wrap=True)
        self._board, self._robots = Board(), list[Robot]()
        self._faults: Faults | None = None
        self._told = Counter[str]()
        self._cpu: dict[str, float] = {}
        self._pictured = options.svg is None
        self._seconds = self._simulated_s = self._adapted_s = 0.0
        self._factors: list[float] = []
        self._clock: SimClock

    def run(self) -> int:
        options = self._options
        environment = self._closing.enter_context(own_graph(options.domain))
        fleet = Fleet(options.names, options.rule, options.seed, options.out, environment, self._tell)
        ended_by = 0
        domain, nodes = environment["ROS_DOMAIN_ID"], len(fleet.processes.nodes)
        self._tell(f"starting {nodes} nodes in ROS domain {domain}; {LOWERED}")
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
        self._clock = undo.enter_context(SimClock())
        self._wait_for_scheduler(fleet, watcher, show)
        self._set_pace()
        fleet.start_robots()
        for number, name in enumerate(options.names):
            robot = Robot(name, number, fleet, contract)
            self._robots.append(robot)
            undo.callback(robot.end)
        begun_s, simulated_ns = time.monotonic(), self._clock.now_ns
        self._faults = faults = Faults(fleet, self._robots, options.kill, self._tell)
        try:
            for robot in self._robots:
                robot.begin(options.episodes, options.seed, lambda: not faults.over)
            while not all(robot.over for robot in self._robots):
                watcher.listen(TICK_S)
                fleet.tend()
                faults.step()
                self._adapt_pace()
                self._report(fleet)
                show()
        finally:
            self._seconds = time.monotonic() - begun_s
            self._simulated_s = (self._clock.now_ns - simulated_ns) * 1e-9
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
                sentence = f"the scheduler was not ready within {START_S:.0f} s ({heard.said})"
                raise RuntimeError(f"{sentence}; the end of {node.log}:\n{node.last_words()}")

    def _set_pace(self) -> None:
        """Set the first factor from what the scheduler measured while nothing else ran."""
        made_hz = self._board.scheduler(time.monotonic()).possible_hz or 0.0
        needed_hz = self._options.robots * ASKING["fleet_chunks_per_s"]
        self._clock.factor = pace.first(made_hz, needed_hz)
        self._factors.append(self._clock.factor)
        self._tell(
            f"the model alone makes {made_hz:.1f} chunks a second, {self._options.robots} robots need "
            f"{needed_hz:.1f} in a simulated second: {self._goes()}"
        )

    def _adapt_pace(self) -> None:
        now_s = time.monotonic()
        if now_s - self._adapted_s >= pace.EVERY_S and self._board.scheduler(now_s).well:
            self._adapted_s = now_s
            lacking = [lacking_s for robot in self._robots if (lacking_s := robot.lacking_s()) is not None]
            self._clock.factor = pace.changed(self._clock.factor, lacking)
            self._factors.append(self._clock.factor)

    def _goes(self) -> str:
        return f"simulated time goes at {self._clock.factor:.2f} of real time"

    def _hear(self, lines: Any) -> None:
        self._board.hear(lines, time.monotonic())

    def _report(self, fleet: Fleet) -> None:
        """Print new episodes, raise a robot's error, and write the picture when it is due."""
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
                table.write_svg(self._board, time.monotonic(), self._options.svg, self._title())
                self._pictured = True

    @contextlib.contextmanager
    def _showing(self) -> Iterator[Callable[[], None]]:
        """Yield a function that shows the table: live on a terminal, else as lines every LINES_EVERY_S."""
        if not self._options.headless and self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False) as live:
                yield lambda: live.update(
                    table.drawn(self._board, time.monotonic(), self._title()), refresh=True
                )
            return
        due_s = time.monotonic() + LINES_EVERY_S

        def show() -> None:
            nonlocal due_s
            now_s = time.monotonic()
            if now_s >= due_s:
                due_s = now_s + LINES_EVERY_S
                self._tell(f"  {self._title()}")
                for line in table.lines(self._board, now_s):
                    self._tell(f"  {line}")

        yield show

    def _title(self) -> str:
        return f"{TITLE}   {self._goes()}" if self._factors else TITLE

    def _figures(self) -> dict[str, Any]:
        rows = self._board.rows(time.monotonic())
        stalled_s = {row.robot: row.stalled_s or 0.0 for row in rows}
        faults = self._faults.faults if self._faults is not None else []
        figures = summary.figures(self._robots, self._options.episodes, faults, stalled_s, self._cpu)
        factors = self._factors or [1.0]
        figures["simulated_time"] = {
            "seconds": round(self._simulated_s, 1),
            "real_seconds": round(self._seconds, 1),
            "factor": {
                "first": round(factors[0], 3),
                "least": round(min(factors), 3),
                "most": round(max(factors), 3),
                "mean": round(self._simulated_s / max(self._seconds, 1e-3), 3),
            },
        }
        return figures

    def _write(self, found: dict[str, Any]) -> None:
        options = self._options
        document = {
            **found,
            "load": round(os.getloadavg()[0], 1),
            "seed": options.seed,
            "policy": options.rule,
            "model": demo_model().name,
            "denoise_steps": DENOISE_STEPS,
            "admission": ADMISSION,
            **ASKING,
            "sensors": {**SENSORS, **{f"{name}_expected_hz": rate for name, rate in RATES_HZ.items()}},
        }
        write_figures(document, options.out / "fleet_demo.json", options.json)

    def _tell(self, sentence: str) -> None:
        self._console.print(sentence, markup=False)
        sys.stdout.flush()
