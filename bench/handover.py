"""How chunks are handed over: styles on a reference, late messages, modes and masks on the bundled policy.

    python bench/handover.py [--seeds N] [--family reach|place|follow] [--processes N] [--styles-only]

Tables in simulation time: they depend on the weights, the seeds and the code, not on the speed of the
machine. Prints them as Markdown and writes bench/results/handover.json, where `parts` says of each part where
and when it was measured.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from handovers import delays, scene
from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option
from vla_accel_ros.tools.provenance import provenance

RESULT = Path(__file__).parent / "results" / "handover.json"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="episodes a cell (default: %(default)s)")
    parser.add_argument("--family", default="reach", help="of tasks (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="that play episodes (default: %(default)s)")
    parser.add_argument(
        "--styles-only", action="store_true", help="leave the policy out, and what was written of it as it is"
    )
    model_option(parser)
    contract_option(parser)
    arguments = parser.parse_args()
    write("styles", styles())
    if not arguments.styles_only:
        write("policy", on_policy(arguments))


def styles() -> dict[str, Any]:
    """What needs no policy."""
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
    """What is played with the bundled policy."""
    from handovers import masks, modes

    plan = modes.Plan(
        chosen_model(arguments), chosen_contract(arguments), arguments.seeds, family=arguments.family
    )
    kept = masks.table(*modes.open_policy(plan), seeds=arguments.seeds)
    print("\n" + "\n".join(masks.lines(kept)), flush=True)
    cells = modes.play(plan, arguments.processes)
    rows = modes.summary(cells)
    print("\n" + "\n".join(modes.lines(rows)))
    return {"modes": rows, "masks": kept, "plan": plan.as_dict(), "episodes": modes.as_json(cells)}


def write(part: str, measured: dict[str, Any]) -> None:
    """Put a part in place of the one that was written before."""
    document: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"parts": {}}
    document = {"parts": {**document.pop("parts"), part: provenance()}, **document, **measured}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
