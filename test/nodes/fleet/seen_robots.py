"""The real scheduler node, over DDS, judges a robot by how those that it serves were seen to ask: scenarios.

One replica that was measured as an engine with the policy `batches` would be, in time that the test moves.
A program: `python seen_robots.py SCENARIO`. Status 0 if all is as it says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fleet_stand_ins import TimedReplica
from hybrid_placement import Hybrid, Tiers, running
from rclpy.node import Node
from scheduler_robot import AskingRobot
from simulated_engine import BATCHES, measured

from vla_accel_msgs.msg import FleetAdmission
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.admission.forecast import at_once
from vla_accel_ros.fleet.replicas.replica import FRAMES, SERVE
from vla_accel_ros.nodes.running.environment import demo_contract

HZ, WITHIN_S, ROUNDS = 3.0, 0.09, 6
TAKES_S = 0.04


class OneEngine(Tiers):
    """Of one replica."""

    def __init__(self) -> None:
        super().__init__()
        known = measured(BATCHES)
        times = {(SERVE, batch): seconds for batch, seconds in known.serve}
        times |= {(FRAMES, batch): seconds for batch, seconds in known.frames}
        one = TimedReplica("gpu", most=known.limit)
        one.profile, one.config, one.step_s = Profile(times), BATCHES, self.edge.step_s
        self.edge, self.replicas = one, (one,)


def ask(hybrid: Hybrid, spread: float) -> None:
    """All ask ROUNDS times: at once, or by turns."""
    count = len(hybrid.robots)
    for number in range(ROUNDS):
        for robot in range(count):
            at_s = 1.0 + (number + spread * robot / count) / HZ
            hybrid.ask(robot, at_s)
            if spread:
                hybrid.finish(hybrid.tiers.edge, at_s + min(TAKES_S, spread / count / HZ))
        while hybrid.tiers.edge.jobs:
            hybrid.finish(hybrid.tiers.edge, at_s + TAKES_S)


def newcomer(hybrid: Hybrid, chunks_per_s: float) -> FleetAdmission:
    """What a further robot is told."""
    node = Node("robot", namespace="/late", use_global_arguments=False)
    hybrid.executor.add_node(node)
    late = AskingRobot(node, Path(demo_contract()), chunks_per_s=chunks_per_s)
    late.asking = False
    hybrid.until(lambda: late.admissions, "word for the newcomer")
    told = late.admissions[-1]
    hybrid.executor.remove_node(node)
    node.destroy_node()
    return told


def refused(hybrid: Hybrid) -> None:
    """Those that are served ask at once: there is no room for another."""
    ask(hybrid, spread=0.0)
    told = newcomer(hybrid, HZ)
    assert not told.admitted, told
    why = f"3 chunks a second are asked for, but beside the {len(hybrid.robots)} robots that are served"
    assert told.reason.startswith(f"{why}, as they ask now, "), told.reason
    assert "in 100 chunks would come within 0.09 s, where 99 are wanted" in told.reason, told.reason
    assert told.reason.endswith("ask for fewer, or add a replica"), told.reason
    assert all(robot.admissions[-1].admitted for robot in hybrid.robots)


def admitted(hybrid: Hybrid) -> None:
    """As many ask by turns: another is served as it asks."""
    ask(hybrid, spread=1.0)
    told = newcomer(hybrid, HZ)
    assert told.admitted and not told.reason and told.chunks_per_s == HZ, told


def slowed(hybrid: Hybrid) -> None:
    """Fewer that ask at once: one that asks for much has a part of it."""
    ask(hybrid, spread=0.0)
    told = newcomer(hybrid, 40.0)
    assert told.admitted and 20.0 <= told.chunks_per_s < 40.0, told
    assert "as they ask now" in told.reason and "it is served at that rate, " in told.reason, told.reason


SCENARIOS = {"refused": (refused, 16), "admitted": (admitted, 16), "slowed": (slowed, 12)}

if __name__ == "__main__":
    scenario, count = SCENARIOS[sys.argv[1]]
    with running(OneEngine(), count, HZ, at_once, in_time_s=WITHIN_S) as hybrid:
        scenario(hybrid)
