"""Tasks, requests and replicas for policies to choose among, where nothing is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import Act
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.admission.forecast import fleet_hz
from vla_accel_ros.fleet.admission.replica_model import Measured
from vla_accel_ros.fleet.admission.verdict import ROUNDING
from vla_accel_ros.fleet.rules.rule import SERVE, FleetRule, FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.task import Task, TaskRequest

EDGE = "edge"


def make_replica(
    limit: int = 1, first_s: float = 0.0, each_s: float = 1.0, network_s: float = 0.0
) -> ReplicaProfile:
    """A batch takes first_s + each_s for each of its requests."""
    known = {(SERVE, size): first_s + each_s * size for size in range(1, limit + 1)}
    return ReplicaProfile(limit, Profile(known), network_s)


def make_policy(name: str, replicas: Mapping[str, ReplicaProfile] | None = None) -> FleetRule:
    """A built-in one; of one replica, EDGE, that takes one request at a time, unless others are given."""
    return find(FLEET_RULES, name)(FleetSetup(replicas or {EDGE: make_replica()}))


def make_request(robot: str, began_s: float = 0.0, kind: str = "reach", **told: Any) -> TaskRequest:
    """A request of a robot's task. told: further fields of the task."""
    task = Task(robot, 1, kind, began_s)
    for name, value in told.items():
        setattr(task, name, value)
    return TaskRequest(Act(), robot, task=task)


def robots_in_time(one: Measured, chunks_per_s: float, within_s: float) -> int:
    """How many robots one replica serves with 99 of 100 chunks in time, each asking for chunks_per_s."""
    return math.floor(fleet_hz([one], chunks_per_s, within_s) / chunks_per_s * ROUNDING)
