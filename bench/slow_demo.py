"""Whether the demo succeeds on a slower machine.

    python bench/slow_demo.py [--times N] [--episodes N]

Every process gets 1/N of one core (bench/slowly.py). A process that is paused every few milliseconds also
finds its caches cold, so its work takes longer than N times, and this machine may itself be slower than that
of README's figures. So the slowdown is measured: the engine's time from images to a chunk, compared with
bench/results/stages_cpu.json. Writes bench/results/slow_demo.json. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vla_accel_ros.tools.provenance import provenance

HERE = Path(__file__).parent
TIMES = 2.2
"""Slows the engine by somewhat more than three times on the machines where this was tried."""


def asked(command: list[str]) -> dict[str, Any]:
    """The JSON of a command that takes --json. Ends the process if the command fails."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        status = subprocess.run([*command, "--json", str(figures)], check=False).returncode
        if status:
            sys.exit(status)
        return json.loads(figures.read_text())


def chunk_ms(stages: dict[str, dict[str, float]]) -> float:
    """From images to a chunk."""
    return round(sum(row["p50_ms"] for name, row in stages.items() if not name.startswith("ask")), 3)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=float, default=TIMES, metavar="N", help="default: %(default)s")
    parser.add_argument("--episodes", type=int, default=12, metavar="N", help="default: %(default)s")
    arguments = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    slowly = [sys.executable, str(HERE / "slowly.py"), str(arguments.times)]
    stages = [sys.executable, str(HERE / "stages.py"), "--runs", "60"]
    usual, slowed = (asked([*before, *stages])["stages"] for before in ([], slowly))
    demo = [sys.executable, "-m", "vla_accel_ros.tools.cli", "demo", "--headless"]
    found = asked([*slowly, *demo, "--episodes", str(arguments.episodes)])
    reference = json.loads((HERE / "results" / "stages_cpu.json").read_text())
    took = [chunk_ms(stages) for stages in (reference["stages"], usual, slowed)]
    succeeded = sum(episodes[0] for episodes in found["successes"].values())
    document = {
        "share_of_a_core": round(1.0 / arguments.times, 3),
        "slower": round(took[2] / took[0], 2),
        "chunk_ms": dict(zip(("reference", "here", "slowed"), took, strict=True)),
        "reference": {name: reference[name] for name in ("machine", "date")},
        "stages": usual,
        "stages_slowed": slowed,
        "succeeded": succeeded,
        "demo": found,
        "load": load,
        **provenance(),
    }
    (HERE / "results" / "slow_demo.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"{took[2] / took[0]:.1f} times slower: {succeeded} of {arguments.episodes} episodes succeed")


if __name__ == "__main__":
    main()
