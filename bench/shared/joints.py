"""A driver of joints as a process of its own, as on a robot.

`python joints.py HZ` writes a byte for each state.
"""

from __future__ import annotations

import os
import sys
import time


def main(rate_hz: float) -> None:
    due_s = time.monotonic()
    while True:
        os.write(1, b"j")
        due_s = max(due_s + 1.0 / rate_hz, time.monotonic() - 1.0 / rate_hz)
        time.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
