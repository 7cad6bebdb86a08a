"""Error, time and memory of fp8, int8 and int4: `vla bench precision` as a script.

    python bench/precision.py [--subjects bundled random] [--kinds pi0 pi05] [--views 2]

Prints tables and writes bench/results/precision_bundled.json and, on a GPU, precision_random.json.
"""

from __future__ import annotations

import sys

from vla_accel_ros.tools.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "precision", *sys.argv[1:]]))
