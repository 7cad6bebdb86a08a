"""Injects every fault that the stack must handle: what stops, how hard, what is reported, and what goes on.

    python bench/faults.py [--only NAME ...] [--more] [--list]

The demo's robot, model and nodes run as processes over real topics; a relay between robot and nodes corrupts
what it passes on. For each fault: seconds until the joints stand; peak velocity and acceleration that the
controllers execute at 500 Hz, relative to the contract's limits; the reasons reported on `motion`; whether
the robot goes on by itself after the fault, after how long, or which service a person has to call. A fault
whose outcome depends on processes or the transport is measured 50 times, another 5 times, all of them 5 times
first; the table has the median and the worst, and says if there were fewer runs. After each run
bench/results/faults.json and the table in docs/safety.md are written, so it may be ended at any time. The
first new run of a fault replaces its old ones, but with --more it is one more of them, until there are as
many as wanted. A run in which the relay itself was late is void and made again. "load" is how many cores were
busy before: on a busy machine delivery and computing are late.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faulting.cases import CASES, STACKS, Case
from faulting.measure import Row, Void, measure
from faulting.robot import Robot, Stalled
from faulting.table import lines
from run import write
from tables.forms import RESULTS
from tables.pages import fill
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running import graph

RESULT = RESULTS / "faults.json"
FIRST = 5
VOID, MOST_VOID = Counter[str](), 20
WANTED = {case.name: case.runs for case in CASES}


class Runs:
    """The runs of each fault by its name, in the order of CASES; kept in a file and on the page."""

    def __init__(self, more: bool) -> None:
        """more: the runs that the file has count, too."""
        self.rows: dict[str, list[Row]] = {case.name: [] for case in CASES}
        for fault in json.loads(RESULT.read_text())["faults"] if RESULT.exists() else []:
            if fault["name"] in self.rows:
                self.rows[fault["name"]] = [Row(**run) for run in fault["runs"]]
        self.done = {name: len(rows) if more else 0 for name, rows in self.rows.items()}
        self._load, self._new = round(os.getloadavg()[0], 2), Counter[str]()

    def add(self, row: Row) -> None:
        """Keep a run, and write all."""
        self._new[row.name] += 1
        if self.done[row.name] + self._new[row.name] == 1:
            self.rows[row.name].clear()
        else:
            row.said = []  # of the first run only
        self.rows[row.name].append(row)
        faults = [{"name": name, "runs": [one.as_dict() for one in rows]} for name, rows in self.rows.items()]
        write(RESULT, {"load": self._load, "faults": faults, **provenance()})
        fill()


def play(cases: list[Case], runs: Runs, folder: Path) -> None:
    """Play all cases as often as each wants, FIRST times each before any more often. A stack that cannot be
    set going again is restarted."""
    domain, lock = graph.claim_domain()
    environment = graph.graph_environment(domain)
    graph.enter(environment)
    starts = 0
    with lock:
        for begin, end in ((0, FIRST), (FIRST, max(WANTED.values()))):
            for stack, options in STACKS.items():
                of_stack = [case for case in cases if case.stack == stack]
                due = [
                    case
                    for run in range(begin, end)
                    for case in of_stack
                    if runs.done[case.name] <= run < case.runs
                ]
                while due:
                    starts += 1
                    Robot.tell(f"starting the {stack} stack for {len(due)} runs")
                    with Robot(folder / f"{stack}-{starts}", environment, **options) as robot:
                        _play_on(robot, due, runs)


def _play_on(robot: Robot, due: list[Case], runs: Runs) -> None:
    """Play and remove due cases, as long as this robot can be set going again."""
    while due:
        case = due.pop(0)
        try:
            row = measure(robot, case, len(due), VOID[case.name] < MOST_VOID)
        except Void as void:
            Robot.tell(f"{case.name}: {void}; once more")
            VOID[case.name] += 1
            due.append(case)
            continue
        except Stalled as stalled:
            row = Row(case.name, case.title, note=str(stalled))
        runs.add(row)
        Robot.tell(f"{case.name}: {json.dumps(row.as_dict())}")
        if row.note or case.stack == "launched":
            return


def main() -> int:
    """Measure, print, write; status 1 when a limit was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measure only these faults")
    parser.add_argument("--more", action="store_true", help="keep the runs made before and complete them")
    parser.add_argument("--list", action="store_true", help="the names of all faults")
    wanted = parser.parse_args()
    if wanted.list:
        print("\n".join(f"{case.name:20} {case.runs:3} runs  {case.title}" for case in CASES))
        return 0
    unknown = set(wanted.only or ()) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no fault is called {', '.join(sorted(unknown))}: --list names them")
    cases = [case for case in CASES if wanted.only is None or case.name in wanted.only]
    gc.disable()  # a collection stops this process, and with it the relay, for some tenths of a second
    runs = Runs(wanted.more)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        play(cases, runs, Path(folder))
    played = {case.name: runs.rows[case.name] for case in cases}
    print("\n".join(lines(played, WANTED)))
    return int(any(row.exceeds for rows in played.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
