"""The demo's figures, end to end over ROS 2: loop rates, age from image stamp to published trajectory,
success, jerk.

    python bench/demo.py [--episodes N] [--starts K] [--ring]

Separate processes, real DDS, simulated robot in real time. These figures depend on the machine, so the file
names it, with "load": how many cores were busy before. The phase between loops and cameras may differ from
start to start, so a run of N episodes is followed by K short ones of 3, whose ages and loads are in "starts".
Writes bench/results/demo.json, or demo_ring.json with --ring, which reads the cameras from shared memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from vla_accel_ros.tools.cli import main

RESULTS = Path(__file__).parent / "results"
SHORT = 3
TOLD = ("age_ms", "inference_ms", "rates_hz", "deadline_misses", "episodes", "load")


def measured(episodes: int, seed: int, given: list[str]) -> dict[str, Any]:
    """The figures of one start; ends the process when there are none."""
    load = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "demo.json"
        options = ["--episodes", str(episodes), "--seed", str(seed), "--json", str(figures), *given]
        if status := main(["demo", "--headless", *options]):
            sys.exit(status)
        return {**json.loads(figures.read_text()), "load": load}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="of the first start")
    parser.add_argument("--starts", type=int, default=4, metavar="K", help="further ones")
    parser.add_argument("--ring", action="store_true", help="cameras from shared memory")
    arguments, given = parser.parse_known_args()
    given += ["--ring"] * arguments.ring
    result = measured(arguments.episodes, 0, given)
    starts = [result, *(measured(SHORT, 1000 * k, given) for k in range(1, arguments.starts + 1))]
    result["starts"] = [{name: start[name] for name in TOLD} for start in starts]
    path = RESULTS / ("demo_ring.json" if arguments.ring else "demo.json")
    path.write_text(json.dumps(result, indent=1) + "\n")
