"""How chunks replace each other: styles on a reference, late messages, and with the bundled policy modes,
masks, noises and staggered chunks.

    python bench/handover.py [--parts styles policy noise staggered] [--seeds N] [--family reach|place|follow]
        [--processes N]

Tables in simulation time: they depend on the weights, the seeds and the code, not on the speed of the
machine. Prints them as Markdown and writes each part to bench/results/handover.json, where `parts` says where
and when it was measured. `noise` and `staggered` store each finished episode in out/ and resume from there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from handovers import delays, scene
from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option
from vla_accel_ros.tools.provenance import provenance

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "handover.json"
SEEDS = {"policy": 20, "noise": 40, "staggered": 20}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(default: all)")
    parser.add_argument("--seeds", type=int, help="episodes a cell (default: 20, of noise 40)")
    parser.add_argument("--family", default="reach", help="of tasks, of modes (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="that play episodes (default: %(default)s)")
    model_option(parser)
    contract_option(parser)
    arguments = parser.parse_args()
    for part in arguments.parts:
        write(part, PARTS[part](arguments))


def styles(arguments: argparse.Namespace) -> dict[str, Any]:
    """The comparisons that need no policy."""
    print("peak acceleration etc. with interpolate_from_desired_state true / false\n")
    rows = {
        "styles": scene.table(),
        "styles_positions_upsampling": scene.table(positions_upsampling=True),
    }
    for title, table in rows.items():
        print("\n".join([f"{title}:", *scene.lines(table), ""]))
    late = delays.table()
    print("\n".join(delays.lines(late)), flush=True)
    return {
        **{title: [asdict(row) for row in table] for title, table in rows.items()},
        "delays": [asdict(row) for row in late],
    }


def on_policy(arguments: argparse.Namespace) -> dict[str, Any]:
    """Modes and masks with the policy."""
    from handovers import masks, modes
    from handovers.episodes import open_policy

    model, contract = chosen_model(arguments), chosen_contract(arguments)
    seeds = arguments.seeds or SEEDS["policy"]
    plan = modes.Plan(model, contract, seeds, family=arguments.family)
    kept = masks.table(*open_policy(model, contract), seeds=seeds)
    print("\n" + "\n".join(masks.lines(kept)), flush=True)
    cells = modes.play(plan, arguments.processes)
    rows = modes.summary(cells)
    print("\n" + "\n".join(modes.lines(rows)))
    return {"modes": rows, "masks": kept, "plan": plan.as_dict(), "episodes": modes.as_json(cells)}


def compared(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare two variants, scene by scene."""
    from handovers import comparisons

    cases = {"noise": comparisons.noises, "staggered": comparisons.staggered}[part]()
    model, contract = chosen_model(arguments), chosen_contract(arguments)
    plan = comparisons.Plan(model, contract, cases, arguments.seeds or SEEDS[part])
    played = comparisons.play(plan, arguments.processes, ROOT / "out" / f"handover_{part}.jsonl")
    rows, pooled = comparisons.summary(played), comparisons.pooled(played)
    print("\n" + "\n".join([*comparisons.lines(rows), "", *comparisons.pooled_lines(pooled)]), flush=True)
    episodes = comparisons.as_json(played)
    return {part: {"pooled": pooled, "cases": rows, "plan": plan.as_dict(), "episodes": episodes}}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "styles": styles,
    "policy": on_policy,
    "noise": lambda arguments: compared("noise", arguments),
    "staggered": lambda arguments: compared("staggered", arguments),
}


def write(part: str, measured: dict[str, Any]) -> None:
    """Replace a part of the file."""
    document: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"parts": {}}
    document = {"parts": {**document.pop("parts"), part: provenance()}, **document, **measured}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
