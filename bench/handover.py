"""How chunks are handed over: styles on a reference, modes and masks on the bundled policy.

    python bench/handover.py [--seeds N] [--family reach|place|follow] [--processes N] [--styles-only]

Three tables in simulation time: they depend on the weights, the seeds and the code, not on the speed of the
machine. Prints them as Markdown and writes bench/results/handover.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vla_accel_ros.tools.handover import scene
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
    parser.add_argument("--styles-only", action="store_true", help="leave the policy out, write nothing")
    model_option(parser)
    contract_option(parser)
    arguments = parser.parse_args()
    print("peak acceleration etc. with interpolate_from_desired_state true / false\n")
    styles = scene.table()
    print("\n".join(scene.lines(styles)))
    if arguments.styles_only:
        return
    from vla_accel_ros.tools.handover import masks, modes

    plan = modes.Plan(
        chosen_model(arguments), chosen_contract(arguments), arguments.seeds, family=arguments.family
    )
    kept = masks.table(*modes.open_policy(plan), seeds=arguments.seeds)
    print("\n" + "\n".join(masks.lines(kept)), flush=True)
    cells = modes.play(plan, arguments.processes)
    rows = modes.summary(cells)
    print("\n" + "\n".join(modes.lines(rows)))
    document: dict[str, Any] = {
        "styles": [asdict(row) for row in styles],
        "modes": rows,
        "masks": kept,
        "plan": plan.as_dict(),
        **provenance(),
        "episodes": modes.as_json(cells),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
