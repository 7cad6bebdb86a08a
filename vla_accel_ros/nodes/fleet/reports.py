"""The fleet scheduler's /diagnostics: a line for the queue, the graph, each replica and each
robot, and other fleet schedulers in the graph.

A scheduler serves every robot of its ROS domain, so two of them would both compute for all, and each would
promise what both need. Another one is said and not refused: a scheduler that was killed stays in the graph
for some 20 s, and the one that takes its place must start meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.fleet.replicas.replica import SERVE, Replica
from vla_accel_ros.fleet.serving.records import Report
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.nodes.diagnostics import ERROR, OK, WARN, status


def of_fleet(scheduler: FleetScheduler, rule: str, unreadable: int, now_s: float) -> list[DiagnosticStatus]:
    """All lines. rule: its name; unreadable: number of refused messages."""
    robots = scheduler.reports(now_s)
    return [
        of_queue(scheduler, robots, rule, unreadable, now_s),
        *map(of_replica, scheduler.replicas),
        *map(of_robot, robots),
    ]


def of_queue(
    scheduler: FleetScheduler, robots: Sequence[Report], rule: str, unreadable: int, now_s: float
) -> DiagnosticStatus:
    """How many wait, in which order, how fairly, and how much of the replicas' capacity is promised."""
    refused = [robot for robot in robots if robot.state == "refused"]
    judged = [robot for robot in robots if robot.state == "being judged"]
    served = [robot for robot in robots if robot not in (*refused, *judged)]
    values = {
        "rule": rule,
        "waiting": scheduler.waiting(),
        "questions waiting": scheduler.questions(),
        "robots served": len(served),
        "robots refused": len(refused),
        "robots being judged": len(judged),
        "fairness (Jain's index)": scheduler.fairness(now_s),
        "chunks promised [1/s]": sum(robot.chunks_per_s for robot in served),
        "chunks possible [1/s]": scheduler.capacity_hz,
        "chunks in time [1/s]": scheduler.in_time_hz,
        "chunks last longer than measured by": scheduler.slower,
        "requests of strangers": scheduler.strangers,
        "unreadable messages": unreadable,
    }
    summary = f"{len(served)} robots are served, {len(refused)} refused"
    return status("queue", OK, summary, values)


def of_graph(others: str) -> DiagnosticStatus:
    """Whether another scheduler serves the same robots. others: a sentence about it, empty for none."""
    return status("graph", ERROR if others else OK, others or "no other scheduler")


def of_replica(one: Replica) -> DiagnosticStatus:
    """A replica's room, and the duration of its requests."""
    times = {
        f"{batch} at once [s]": seconds
        for (stage, batch), seconds in sorted(one.profile.known().items())
        if stage == SERVE
    }
    values = {"room": one.room(), "most": one.limit, "network [s]": one.network_s, **times}
    if not times:
        return status(f"replica {one.name}", WARN, "has not started; the log says why", values)
    return status(f"replica {one.name}", OK, "computes", values)


def of_engine(engine: Engine) -> DiagnosticStatus:
    """An engine's slots for frames: all are free while nothing is computed."""
    pool = engine.runner.pool
    return status("engine", OK, "", {"slots": pool.slots, "slots in use": pool.slots - pool.free})


def of_robot(robot: Report) -> DiagnosticStatus:
    """One robot's state, waits and counts."""
    counts = {name: count for name, count in vars(robot.counts).items() if count}
    values = {
        "buffer [s]": robot.buffer_s,
        "queue wait [s]": robot.queued_s,
        "observation age [s]": robot.age_s,
        "stalled [s]": robot.stalled_s,
        "wait ratio": robot.wait_ratio,
        "chunks promised [1/s]": robot.chunks_per_s,
        **counts,
    }
    summary = f"{robot.state}: {robot.reason}" if robot.reason else robot.state
    return status(f"robot {robot.robot}", WARN if robot.reason else OK, summary, values)


NAME = "fleet_scheduler"


class OtherSchedulers:
    """sentence: about the others that are in the graph, of the last look; empty if there are none."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.sentence = ""

    def look(self) -> None:
        """Look at the graph, and log what is new."""
        names = {NAME, self._node.get_name()}
        schedulers = [node for node in self._node.get_node_names_and_namespaces() if node[0] in names]
        name = self._node.get_name(), self._node.get_namespace()
        if name in schedulers:
            schedulers.remove(name)
        previous, self.sentence = self.sentence, _sentence(schedulers)
        if self.sentence and self.sentence != previous:
            self._node.get_logger().error(self.sentence)


def _sentence(there: list[tuple[str, str]]) -> str:
    if not there:
        return ""
    named = ", ".join(sorted(f"{namespace.rstrip('/')}/{name}" for name, namespace in there))
    return (
        f"another fleet scheduler is in this ROS domain and serves the same robots: {named}; end all but "
        "one, or give each fleet its own ROS_DOMAIN_ID (one that was killed is listed for some 20 s)"
    )
