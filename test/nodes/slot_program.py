"""Chunks in shared memory from a process of its own, which a test can kill; knows no ROS.

python slot_program.py NAME JOINTS RATE_HZ WRITER: reads goals from stdin, a line of numbers each, and writes
chunks that lead there, each a little off, until stdin ends.
"""

from __future__ import annotations

import select
import sys
import time

import numpy as np

from vla_accel_ros.control.chunking.chunk_record import ChunkWriter
from vla_accel_ros.sensing.slot import SlotWriter
from vla_accel_ros.types import Chunk

HORIZON, STEP_S, AGE_NS, OFF = 50, 1 / 30, 30_000_000, 0.002


def main(name: str, joints: str, rate_hz: str, writer: str) -> None:
    """Write until stdin ends."""
    records, period_s, rng = ChunkWriter(tuple(joints.split(",")), writer), 1 / float(rate_hz), np.random
    slot, random = SlotWriter(name, records.most_bytes), rng.default_rng(0)
    goal, request, due_s = np.array(sys.stdin.readline().split(), float), 0, time.monotonic()
    print("ready", flush=True)
    while True:
        if select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))[0]:
            line = sys.stdin.readline()
            if not line:
                break
            goal = np.array(line.split(), float)
        if time.monotonic() < due_s:
            continue
        due_s, request = max(due_s + period_s, time.monotonic() - period_s), request + 1
        actions = (goal + OFF * random.normal(size=(HORIZON, len(goal)))).astype(np.float32)
        stamp_ns = time.time_ns() - AGE_NS
        chunk = Chunk(actions, stamp_ns, STEP_S, request, request, np.zeros(HORIZON, np.float32))
        slot.write(records.record(chunk, actions), stamp_ns)
    slot.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
