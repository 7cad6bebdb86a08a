"""The bundled policy's success table: 200 paired episodes per family and condition, through the engine
without ROS.

    python bench/demo_policy.py [--processes N]

Simulated robot in simulation time (an observation every 0.1 s, whose chunk takes effect 0.1 s later): the
figures depend on the weights and the seeds, not on the speed of the machine. Writes
bench/results/demo_policy.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vla_accel_ros.tools.cli import main

EVAL = "eval", "--episodes", "200", "--conditions", "normal,shuffled,blank,still"
RESULT = Path(__file__).parent / "results" / "demo_policy.json"

if __name__ == "__main__":
    sys.exit(main([*EVAL, "--json", str(RESULT), *sys.argv[1:]]))
