"""Runs a node in a process with a wrong clock: `python clock.py SECONDS MODULE --ros-args ...`.

ROS time and Python's wall clock are shifted, as on a machine whose clock is set wrong; steady time is not.
"""

from __future__ import annotations

import runpy
import sys
import time

from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.time import Time


def shift(seconds: float) -> None:
    """Shift all of this process's clocks but the steady one ahead by so many seconds."""
    ahead, ahead_ns = Duration(nanoseconds=round(seconds * 1e9)), round(seconds * 1e9)
    read, time_s, time_ns = Clock.now, time.time, time.time_ns

    def shifted(clock: Clock) -> Time:
        return read(clock) if clock.clock_type == ClockType.STEADY_TIME else read(clock) + ahead

    Clock.now = shifted
    time.time, time.time_ns = lambda: time_s() + seconds, lambda: time_ns() + ahead_ns


if __name__ == "__main__":
    shift(float(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
