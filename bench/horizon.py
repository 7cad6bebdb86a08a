"""Execution horizons with the bundled policy: which signal predicts errors, and success against load.

    python bench/horizon.py [--parts signals front] [--seeds N] [--processes N]

In simulation time: figures depend on the weights, the seeds and the code, not on the speed of the machine.
Prints tables as Markdown and writes each part to bench/results/horizon.json, with where and when. `front`
stores each finished episode in out/ and resumes from there.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from horizons import front, signals

from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option
from vla_accel_ros.tools.provenance import provenance

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "horizon.json"
FAMILIES = {"reach": 12, "place": 6}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(default: all)")
    parser.add_argument("--seeds", type=int, default=100, help="episodes a row of front (default: 100)")
    parser.add_argument("--cells", type=int, help="of front, the first so many (default: all)")
    parser.add_argument("--processes", type=int, default=1, help="that play episodes (default: %(default)s)")
    model_option(parser)
    contract_option(parser)
    arguments = parser.parse_args()
    for part in arguments.parts:
        write(part, PARTS[part](arguments))


def of_signals(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rank correlations with the error."""
    table = signals.collect(chosen_model(arguments), chosen_contract(arguments), FAMILIES)
    rows = signals.correlations(table)
    print("\n".join(signals.lines(rows)), flush=True)
    return {
        "episodes": {family: {"static": n, "moved": n} for family, n in FAMILIES.items()},
        "denoise_steps": DENOISE_STEPS,
        "timing": asdict(signals.TIMING),
        "chunks": int((table.place == 0).sum()),
        "samples": {"mean": signals.SAMPLES - signals.OF_SPREAD, "spread": signals.OF_SPREAD},
        "correlations": rows,
        "quantiles": signals.quantiles(table),
    }


def of_front(arguments: argparse.Namespace) -> dict[str, Any]:
    """Success against load."""
    plan, log = front.cells()[: arguments.cells], ROOT / "out" / "horizon.jsonl"
    model, contract = chosen_model(arguments), chosen_contract(arguments)
    found = front.play(plan, model, contract, arguments.seeds, arguments.processes, log)
    rows = front.summary(found)
    print("\n".join(front.lines(rows)), flush=True)
    return {
        "seeds": [0, arguments.seeds - 1],
        "denoise_steps": DENOISE_STEPS,
        "timing": asdict(front.ON_DEMAND),
        "rows": rows,
    }


def write(part: str, found: dict[str, Any]) -> None:
    """Into the JSON, beside the other part."""
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    kept[part] = found
    kept.setdefault("parts", {})[part] = provenance()
    RESULT.write_text(json.dumps(kept, indent=1) + "\n")


PARTS = {"signals": of_signals, "front": of_front}

if __name__ == "__main__":
    main()
