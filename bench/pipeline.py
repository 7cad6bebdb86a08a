"""What sharing forwards brings: text beside action, frames in one pipeline, chunks denoised in one batch.

    python bench/pipeline.py [--quick] [--parts oxygen actionflow staggered]

On a GPU, with random weights of the published sizes; `vla bench pipeline` by another name. Writes
bench/results/pipeline.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vla_accel_ros.tools.cli import main

RESULT = Path(__file__).parent / "results" / "pipeline.json"

if __name__ == "__main__":
    sys.exit(main(["bench", "pipeline", "--json", str(RESULT), *sys.argv[1:]]))
