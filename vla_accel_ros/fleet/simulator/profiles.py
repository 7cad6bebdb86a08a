"""Durations of batches of chunks: assumed for a workload, or from a file.

A file is JSON, {"profile": {"serve": {"1": 0.0098, "2": 0.0192, ...}}}: stage -> batch -> seconds. Other
keys say where it comes from.
"""

from __future__ import annotations

import json
from pathlib import Path

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.rules.rule import SERVE, ReplicaProfile
from vla_accel_ros.fleet.simulator.traces import Trace
from vla_accel_ros.fleet.simulator.workloads import Workload


def assumed(workload: Workload, faster: float = 1.0, network_s: float = 0.0) -> ReplicaProfile:
    """Return a replica as the workload assumes it, or `faster` times as fast."""
    durations = {(SERVE, size): workload.served_s(size) / faster for size in range(1, workload.limit + 1)}
    return ReplicaProfile(workload.limit, Profile(durations), network_s)


def load(path: Path, faster: float = 1.0, network_s: float = 0.0) -> ReplicaProfile:
    """Return a replica from a file, or `faster` times as fast, with batches up to the largest in the file.
    Raises ValueError if the file is malformed."""
    try:
        stages = json.loads(path.read_bytes())["profile"]
        durations = {
            (stage, int(size)): float(s) / faster
            for stage, sizes in stages.items()
            for size, s in sizes.items()
        }
        profile = Profile(durations)
        limit = max(size for stage, size in durations if stage == SERVE)
    except (ValueError, TypeError, KeyError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is no profile ({type(error).__name__}: {error}); let it be "
            f'{{"profile": {{"{SERVE}": {{"1": SECONDS, ...}}}}}}.'
        ) from error
    return ReplicaProfile(limit, profile, network_s)


def recorded(trace: Trace, faster: float = 1.0, network_s: float = 0.0) -> ReplicaProfile:
    """Return a replica that takes one request at a time, with the trace's median duration of a chunk. Raises
    ValueError if the trace has no durations."""
    if trace.served_s is None:
        raise ValueError("the trace has no durations; give --profile FILE as well.")
    return ReplicaProfile(1, Profile({(SERVE, 1): trace.served_s / faster}), network_s)
