"""What sharing forwards brings: text beside action, frames in one pipeline, chunks denoised in one batch.

    python bench/pipeline.py [--quick] [--parts oxygen actionflow staggered mps] [--budget-s N] [--resume]
    python bench/pipeline.py --share 1/4 --json 1.json
    python bench/pipeline.py --merge 1.json 2.json 3.json 4.json
    python bench/pipeline.py --tables

On a GPU, with random weights of the published sizes; `vla bench pipeline` by another name. Writes
bench/results/pipeline.json, or the file that --json names, and its tables into docs/pipeline.md; --tables
does only the latter. The second line is one of four processes, each with a GPU and cores of its own
(CUDA_VISIBLE_DEVICES=0 taskset -c 0-15 python ...); the third joins what they measured.
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
    given = sys.argv[1:]
    status = 0 if given == ["--tables"] else main(["bench", "pipeline", "--json", str(RESULT), *given])
    if "--json" not in given:
        PAGE.write_text(render(json.loads(RESULT.read_text())))
    sys.exit(status)
