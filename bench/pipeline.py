"""What sharing forwards brings: text beside action, frames in one pipeline, chunks denoised in one batch.

    python bench/pipeline.py [--quick] [--parts oxygen actionflow staggered mps] [--budget-s N] [--resume]
    python bench/pipeline.py --tables

On a GPU, with random weights of the published sizes; `vla bench pipeline` by another name. Writes
bench/results/pipeline.json, and its tables into docs/pipeline.md; --tables does only the latter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vla_accel_ros.tools.bench.pipeline.tables import render
from vla_accel_ros.tools.cli import main

RESULT = Path(__file__).parent / "results" / "pipeline.json"
PAGE = Path(__file__).parent.parent / "docs" / "pipeline.md"

if __name__ == "__main__":
    only_tables = sys.argv[1:] == ["--tables"]
    status = 0 if only_tables else main(["bench", "pipeline", "--json", str(RESULT), *sys.argv[1:]])
    PAGE.write_text(render(json.loads(RESULT.read_text())))
    sys.exit(status)
