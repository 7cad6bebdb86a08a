"""An adapter for two threads: each call holds the lock of all of a robot's adapters.

The node's thread decides about motion; the thread of the force sensors makes the ticks and reacts to
contacts. Each call takes microseconds, so neither thread waits longer than that.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters.adapter import Adapter, Setup


class LockedAdapter(Adapter):
    """Passes all calls on to another adapter. `open` runs without the lock, because it waits for answers."""

    def __init__(self, adapter: Adapter, lock: threading.RLock) -> None:
        super().__init__(adapter.controller)
        self._adapter, self._lock = adapter, lock

    @classmethod
    def make(cls, setup: Setup) -> Adapter:
        raise TypeError("a locked adapter is made of another one")

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        with self._lock:
            self._adapter.send(trajectory, decided_ns)

    def measured(self, positions: Mapping[str, float], stamps_ns: Mapping[str, int], believed: bool) -> None:
        with self._lock:
            self._adapter.measured(positions, stamps_ns, believed)

    def reference(self, now_ns: int) -> Mapping[str, float]:
        with self._lock:
            return self._adapter.reference(now_ns)

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        with self._lock:
            return self._adapter.commanded(t_ns)

    def begin(self) -> None:
        with self._lock:
            self._adapter.begin()

    def stop(self, braking: Trajectory | None, now_ns: int) -> Trajectory | None:
        with self._lock:
            return self._adapter.stop(braking, now_ns)

    def rests_ns(self) -> int:
        with self._lock:
            return self._adapter.rests_ns()

    def tick(self, now_ns: int) -> None:
        with self._lock:
            self._adapter.tick(now_ns)

    def open(self) -> list[str]:
        return self._adapter.open()

    def rest(self) -> None:
        with self._lock:
            self._adapter.rest()

    def at_rest(self, now_ns: int) -> bool:
        with self._lock:
            return self._adapter.at_rest(now_ns)

    def close(self) -> None:
        with self._lock:
            self._adapter.close()

    def lead_s(self, now_ns: int) -> float:
        with self._lock:
            return self._adapter.lead_s(now_ns)

    @property
    def waits(self) -> bool:
        with self._lock:
            return self._adapter.waits

    @property
    def awaits_arrival(self) -> bool:
        with self._lock:
            return self._adapter.awaits_arrival

    @property
    def hindrance(self) -> str:
        with self._lock:
            return self._adapter.hindrance

    @property
    def trouble(self) -> str:
        with self._lock:
            return self._adapter.trouble

    def values(self) -> dict[str, object]:
        with self._lock:
            return self._adapter.values()
