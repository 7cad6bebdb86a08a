"""The demo's figures, end to end over ROS 2: loop rates, age from image stamp to published trajectory,
success, jerk.

    python bench/demo.py [--episodes N]

Separate processes, real DDS, simulated robot in real time: these figures do depend on the machine, which is
written down with them. Writes bench/results/demo.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vla_accel_ros.tools.cli import main

RESULT = Path(__file__).parent / "results" / "demo.json"

if __name__ == "__main__":
    given = sys.argv[1:] or ["--episodes", "20"]
    sys.exit(main(["demo", "--headless", "--json", str(RESULT), *given]))
