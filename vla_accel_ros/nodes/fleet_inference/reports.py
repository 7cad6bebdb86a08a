"""The node's /diagnostics about its fleet."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.fleet.robot.client import FleetClient
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.fleet_inference.link import FleetLink


def of_fleet(client: FleetClient, link: FleetLink, questions: int, now_ns: int) -> DiagnosticStatus:
    """The present round, counts of the earlier ones, and why it waits. questions: number of unanswered
    ones."""
    admission, observed_ns = client.admission, client.observed_ns
    p50_s, p99_s = client.latency_s(0.5), client.latency_s(0.99)
    values: dict[str, object] = {
        "state": client.state,
        "scheduler": "none" if admission is None else admission.scheduler,
        "task": client.round.task,
        "round": client.round.number,
        "attempt": client.attempt,
        "chunks": client.counts["rounds"],
        "requests": client.counts["attempts"],
        "lost": client.counts["lost"],
        "late": client.counts["late"],
        "useless when they came": client.counts["stale"],
        "refused by the scheduler": client.counts["refused"],
        "observed anew when called": client.counts["calls"],
        "answers for nobody": client.counts["foreign"],
        "questions open": questions,
        "messages refused": link.refused.total(),
        "stalled [s]": client.execution.stalled_s,
        "observation age [s]": "nothing asked" if observed_ns is None else (now_ns - observed_ns) * 1e-9,
        "answer p50 [s]": "none yet" if p50_s is None else p50_s,
        "answer p99 [s]": "none yet" if p99_s is None else p99_s,
        "queued, last [s]": link.queued_s,
        "replica, last": link.replica,
    }
    problem = "".join(client.waiting_for(now_ns))
    if not problem and admission is not None and admission.reason:
        problem = f"served, but {admission.reason}"
    return status("fleet", WARN if problem else OK, problem or "chunks come from the fleet", values)
