"""Injects every fault that the stack must handle: what stops, how hard, what is reported, and what goes on.

    python bench/faults.py [--only NAME ...] [--list]

The demo's robot, model and nodes run as processes over real topics; a relay between robot and nodes corrupts
what it passes on. For each fault: seconds until the joints stand; peak velocity and acceleration that the
controllers execute at 500 Hz, relative to the contract's limits; the reasons reported on `motion`; whether
the robot goes on by itself after the fault, after how long, or which service a person has to call. Writes
bench/results/faults.json and the table in docs/safety.md; with --only it prints its lines and writes nothing.
"load" is how many cores were busy before: on a busy machine delivery and computing are late.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faulting.cases import CASES, STACKS, Case
from faulting.measure import Row, measure
from faulting.robot import Robot, Stalled
from faulting.table import lines, write
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running import graph

RESULT = Path(__file__).parent / "results" / "faults.json"
PAGE = Path(__file__).parent.parent / "docs" / "safety.md"


def play(cases: list[Case], folder: Path) -> list[Row]:
    """Play all cases, with one start of each stack; a stack that cannot be set going again is restarted."""
    rows: list[Row] = []
    domain, lock = graph.claim_domain()
    environment = graph.graph_environment(domain)
    graph.enter(environment)
    with lock:
        for stack, options in STACKS.items():
            left = [case for case in cases if case.stack == stack]
            while left:
                Robot.tell(f"starting the {stack} stack for {len(left)} faults")
                with Robot(folder / f"{stack}-{len(left)}", environment, **options) as robot:
                    while left:
                        case = left[0]
                        try:
                            row = measure(robot, case, len(rows))
                        except Stalled as stalled:
                            row = Row(case.name, case.title, note=str(stalled))
                        rows.append(row)
                        left.pop(0)
                        Robot.tell(f"{case.name}: {json.dumps(row.as_dict())}")
                        if row.note or case.stack == "launched":
                            break
    return rows


def main() -> int:
    """Measure, print, write; status 1 when a limit was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults; nothing is written")
    parser.add_argument("--list", action="store_true", help="the names of all faults")
    wanted = parser.parse_args()
    if wanted.list:
        print("\n".join(f"{case.name:20} {case.title}" for case in CASES))
        return 0
    unknown = set(wanted.only or ()) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no fault is called {', '.join(sorted(unknown))}: --list names them")
    cases = [case for case in CASES if wanted.only is None or case.name in wanted.only]
    load = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = play(cases, Path(folder))
    print("\n".join(lines(rows)))
    if wanted.only is None:
        document = {"load": load, "faults": [row.as_dict() for row in rows], **provenance()}
        RESULT.write_text(json.dumps(document, indent=1) + "\n")
        write(PAGE, rows)
    return int(any(max(row.velocity, row.acceleration, row.position) > 1.001 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
