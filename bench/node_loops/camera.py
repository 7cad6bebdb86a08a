"""The cameras: each frame written once, into a ring; its handle goes to inference."""

from __future__ import annotations

import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from node_loops.running import Port
from node_loops.setting import CAMERA_HZ, Setting
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.cameras.ring import RingWriter

PICTURES = 4


def run(port: Port, setting: Setting, handles: Connection) -> dict[str, Any]:
    """Frames of noise of all cameras, triggered together. stamps_ns: when, int64 [N]."""
    contract, rng = Contract.load(setting.contract), np.random.default_rng(0)
    shape, stamps_ns = (*setting.size, 3), list[int]()
    pictures = [rng.integers(0, 256, shape, dtype=np.uint8) for _ in range(PICTURES)]
    with ExitStack() as open_rings:
        rings = {
            camera.name: open_rings.enter_context(RingWriter(setting.ring(camera.name), *setting.size))
            for camera in contract.cameras
        }
        port.ready()
        for number in port.ticks(CAMERA_HZ):
            stamp_ns = time.time_ns()
            for view, (camera, ring) in enumerate(rings.items()):
                handles.send((camera, ring.write(pictures[(number + view) % PICTURES], stamp_ns)))
            stamps_ns.append(stamp_ns)
    return {"stamps_ns": np.array(stamps_ns, np.int64)}
