"""The scheduler's time: real, or paced by simulated time if the node has use_sim_time.

Robots in simulated time wait in its seconds, so the scheduler counts in them too. Its time never jumps: if
ROS time is set, only its pace counts. A replica is measured in real seconds; the pace gives how many chunks
it makes in a second of the robots.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from vla_accel_ros.fleet.replicas.replica import Replica

LOOKS = 5
"""Number of looks over which the pace is measured."""
CHANGED = 0.05
"""Relative change from which the pace counts as changed."""


class SchedulerClock:
    """ros_ns: ROS time in nanoseconds, None while that is real time. steady_s: real seconds."""

    def __init__(
        self, ros_ns: Callable[[], int | None], steady_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ros_ns, self._steady_s = ros_ns, steady_s
        self._set_ns = 0
        self._looks: deque[tuple[float, float]] = deque(maxlen=LOOKS)
        # replica -> its profile, and the pace by which it is scaled
        self._scaled: dict[str, tuple[object, float]] = {}

    def now_s(self) -> float:
        """Seconds in the robots' time, from an arbitrary origin."""
        ros_ns = self._ros_ns()
        return self._steady_s() if ros_ns is None else (ros_ns - self._set_ns) * 1e-9

    def jumped(self, by_ns: int) -> None:
        """ROS time was set by this much."""
        self._set_ns += by_ns

    def look(self, replicas: Iterable[Replica]) -> bool:
        """Measure the pace, and scale the replicas' profiles to the robots' seconds; call it steadily.
        Returns False until the pace is known."""
        if self._ros_ns() is None:
            return True
        self._looks.append((self._steady_s(), self.now_s()))
        (began_s, from_s), (ended_s, to_s) = self._looks[0], self._looks[-1]
        if to_s <= from_s or ended_s <= began_s:
            return bool(self._scaled)  # simulated time stands still
        pace = (to_s - from_s) / (ended_s - began_s)
        for replica in replicas:
            profile, by = self._scaled.get(replica.name, (None, 1.0))
            if profile is not replica.profile:
                by = 1.0
            if abs(pace / by - 1.0) > CHANGED:
                replica.profile.scale(pace / by)
                by = pace
            self._scaled[replica.name] = replica.profile, by
        return True
