"""The demo's figures, end to end over ROS 2: loop rates, age from image stamp to published trajectory,
success, jerk.

    python bench/demo.py [--episodes N] [--ring]

Separate processes, real DDS, simulated robot in real time: these figures do depend on the machine, which is
written down with them. Writes bench/results/demo.json, or demo_ring.json with --ring, which reads the cameras
from shared memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vla_accel_ros.tools.cli import main

RESULTS = Path(__file__).parent / "results"

if __name__ == "__main__":
    given = sys.argv[1:] if "--episodes" in sys.argv else ["--episodes", "20", *sys.argv[1:]]
    result = RESULTS / ("demo_ring.json" if "--ring" in given else "demo.json")
    sys.exit(main(["demo", "--headless", "--json", str(result), *given]))
