"""A driver of a force sensor, in a thread of a test, and the section of a contract for it."""

from __future__ import annotations

import threading
import time

from vla_accel_ros.sensing.force_slot import ForceWriter

QUANTITIES = {
    "force_n": {"yields": 10.0, "stops": 30.0, "most": 200.0, "bias": 4.0},
    "torque_nm": {"yields": 2.0, "stops": 5.0},
}


class Sensor(threading.Thread):
    """A driver that writes a slot at 1 kHz. force: on z [N]."""

    def __init__(self, slot: str) -> None:
        super().__init__(daemon=True)
        self.force, self.over = 1.0, False
        self._writer = ForceWriter(slot)
        self.start()

    def run(self) -> None:
        k = 0
        while not self.over:
            k += 1
            self._writer.write((0.01 * (k % 7), 0.0, self.force, 0.0, 0.0, 0.0), time.time_ns())
            time.sleep(0.001)
        self._writer.close()
