"""Kills processes while the fleet works, and measures how long the arms take to move again.

First all nodes of one robot's own computer are killed at once, during one of its tasks; then the scheduler
with its only replica, while all robots are at a task. The second kill waits until the arms have moved again
for SETTLE_S. Times are real seconds from the kill to the first trajectory made from a later observation; they
include the wait before the restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vla_accel_ros.tools.fleet_demo.fleet import OWN, Fleet, process_name
from vla_accel_ros.tools.fleet_demo.fleet import SCHEDULER as SCHEDULER_NODE
from vla_accel_ros.tools.fleet_demo.plan import ROBOT, SCHEDULER
from vla_accel_ros.tools.fleet_demo.robot import Robot

SETTLE_S = 2.0
IMPATIENT_S = 20.0
"""Seconds after which the scheduler is killed even if not all robots are at a task."""
AGAIN_S = 300.0


@dataclass
class Fault:
    """Processes that were killed at once.

    at_s: seconds since the demo's faults began. moving_again_s: for each affected robot, the seconds from the
    kill until its arm moved again, None until then.
    """

    killed: tuple[str, ...]
    at_s: float
    moving_again_s: dict[str, float | None] = field(default_factory=dict)
    _at_ns: dict[str, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether all affected arms move again."""
        return None not in self.moving_again_s.values()


class Faults:
    """Kills what is due; call `step` often.

    kills: what to kill, in order, some of plan.KILLS. tell: gets sentences for the user.
    """

    def __init__(
        self, fleet: Fleet, robots: Sequence[Robot], kills: Sequence[str], tell: Callable[[str], None]
    ) -> None:
        self.faults: list[Fault] = []
        self._fleet, self._robots, self._tell = fleet, robots, tell
        self._victim = robots[len(robots) // 2]
        by_name = {ROBOT: self._kill_robot, SCHEDULER: self._kill_scheduler}
        self._planned = [by_name[name] for name in kills]
        self._begun_s = time.monotonic()
        self._since_s = self._begun_s

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun_s

    @property
    def over(self) -> bool:
        """Whether all kills are done and all arms move again."""
        return not self._planned and all(fault.over for fault in self.faults)

    def step(self) -> None:
        """Make the next kill if it is due. Raises RuntimeError if a robot does not move within AGAIN_S of a
        kill."""
        now_s = time.monotonic()
        if self.faults and not (fault := self.faults[-1]).over:
            self._look(fault)
            if fault.over:
                self._since_s = now_s
            elif now_s - self._begun_s - fault.at_s > AGAIN_S:
                still = [name for name, again_s in fault.moving_again_s.items() if again_s is None]
                raise RuntimeError(
                    f"{', '.join(still)} did not move within {AGAIN_S:.0f} s after {', '.join(fault.killed)} "
                    "was killed: look at the logs"
                )
        elif self._planned and now_s - self._since_s > SETTLE_S and self._planned[0](now_s):
            del self._planned[0]

    def _kill_robot(self, now_s: float) -> bool:
        if not self._victim.acting:
            return False
        self._kill([process_name(self._victim.name, node) for node in OWN], [self._victim])
        return True

    def _kill_scheduler(self, now_s: float) -> bool:
        acting = [robot for robot in self._robots if robot.acting]
        if not acting or (len(acting) < len(self._robots) and now_s - self._since_s < IMPATIENT_S):
            return False
        self._kill([SCHEDULER_NODE], acting)
        return True

    def _kill(self, names: list[str], robots: Sequence[Robot]) -> None:
        self._tell(f"SIGKILL to {' and '.join(names)}")
        at_ns = {robot.name: robot.operator.now_ns() for robot in robots}
        at_s = self._fleet.kill(*names) - self._begun_s
        self.faults.append(Fault(tuple(names), at_s, dict.fromkeys(at_ns), at_ns))

    def _look(self, fault: Fault) -> None:
        for robot in self._robots:
            waited_for = fault.moving_again_s.get(robot.name, 0.0) is None
            if waited_for and robot.moving_again_ns(fault._at_ns[robot.name]) is not None:
                fault.moving_again_s[robot.name] = took_s = self.now_s - fault.at_s
                self._tell(f"{robot.name} moves again, {took_s:.1f} s after the kill")
