"""Images to actions on a GPU, beside other ways and the roofline: `vla bench engine` as a script.

    python bench/engine.py [--quick] [--kinds pi0 pi05] [--views 1 2 3]

Prints a table and writes bench/results/engine.json and engine.png.
"""

from __future__ import annotations

import sys

from vla_accel_ros.tools.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "engine", *sys.argv[1:]]))
