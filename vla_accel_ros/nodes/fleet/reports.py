"""The fleet scheduler's /diagnostics: a line for the queue, the graph, each replica and each robot."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostic_msgs.msg import DiagnosticStatus

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
