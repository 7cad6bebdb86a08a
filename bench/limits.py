"""The cost of a chunk in the trajectory node, from its message to the published JointTrajectory, on one core.

    python bench/limits.py [--chunks N]

Chunks of a contract's joints, or of 7 or 14 such joints, 10 a second: "typical" ones follow a smooth motion
within limits; "wild" ones ask for random positions over the whole range, so that every joint has to be led at
every step and back to rest. As in the node, chunks are parsed, joined to the old path, limited, bounded in
time and put into a message. Times are CPU time of this thread alone, in milliseconds. Prints a table and
writes bench/results/limits.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.plausibility import MOST_ACTIONS
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.nodes.adapters.joint_trajectory import TrajectoryMessage
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.tools.provenance import provenance

RESULT = Path(__file__).parent / "results" / "limits.json"
SEED, WARM_UP = 0, 20
BEGIN_NS = 1_000_000_000_000
PERIOD_NS, AGE_NS, MAX_AGE_S = 100_000_000, 50_000_000, 0.5
_Result = TypeVar("_Result")


class Stopwatch:
    """Milliseconds of CPU of each part of each chunk."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}

    def time(self, part: str, body: Callable[[], _Result]) -> _Result:
        """Do it and write down how long it took."""
        start = time.thread_time()
        result = body()
        self.parts.setdefault(part, []).append(1e3 * (time.thread_time() - start))
        return result

    def table(self) -> dict[str, dict[str, float]]:
        """Median, p99 and maximum of each part and of the sum."""
        parts = {name: np.array(taken[WARM_UP:]) for name, taken in self.parts.items()}
        parts["sum"] = np.sum(list(parts.values()), axis=0)
        return {
            name: {
                "p50_ms": round(float(np.median(taken)), 3),
                "p99_ms": round(float(np.quantile(taken, 0.99)), 3),
                "max_ms": round(float(taken.max()), 3),
            }
            for name, taken in parts.items()
        }


def make_limits(joints: int) -> JointLimits:
    """Those of the UR5e in config/contracts; every seventh joint is a slower, harder gripper."""
    ones = np.ones(joints)
    velocity, acceleration = 1.57 * ones, 5.0 * ones
    velocity[6::7], acceleration[6::7] = 0.5, 10.0
    return JointLimits(-3.14 * ones, 3.14 * ones, velocity, acceleration)


def make_actions(
    kind: str, rng: np.random.Generator, stamp_ns: int, horizon: int, step_s: float, limits: JointLimits
) -> np.ndarray:
    """float32 [horizon, D]."""
    if kind == "wild":
        shape = (horizon, len(limits.lower))
        return rng.uniform(limits.lower, limits.upper, shape).astype(np.float32)
    t = stamp_ns * 1e-9 + np.arange(1, horizon + 1) * step_s
    swing = 0.4 * limits.velocity
    return (swing * np.sin(t[:, None] + np.arange(len(swing)))).astype(np.float32)


def measure(kind: str, horizon: int, joints: int, step_s: float, chunks: int) -> dict[str, Any]:
    """One row of the table."""
    rng, limits = np.random.default_rng(SEED), make_limits(joints)
    names = tuple(f"joint_{i}" for i in range(joints))
    buffer, watch = TrajectoryBuffer(names, limits, max_age_s=MAX_AGE_S), Stopwatch()
    sender, points = TrajectoryMessage(names), 0
    buffer.reset(make_actions("typical", rng, BEGIN_NS - AGE_NS, 1, 0.0, limits)[0])
    for request in range(WARM_UP + chunks):
        now_ns = BEGIN_NS + request * PERIOD_NS
        actions = make_actions(kind, rng, now_ns - AGE_NS, horizon, step_s, limits)
        message = ActionChunk(
            joint_names=list(names), horizon=horizon, action_dim=joints, step_dt_s=step_s, request_id=request
        )
        message.actions = array("f", actions.tobytes())
        convert.set_stamp(message.header.stamp, now_ns - AGE_NS)
        chunk = watch.time("parse", partial(convert.chunk_from_message, message, names))
        sent = watch.time("update", partial(buffer.update, chunk, now_ns))
        assert sent is not None
        watch.time("fill", partial(sender.fill, sent, sent.start_ns))
        points = max(points, len(sent))
        assert buffer.report is not None
        if request >= WARM_UP:
            assert len(buffer.report.limited) == (joints if kind == "wild" else 0), buffer.report
    return {
        "kind": kind,
        "horizon": horizon,
        "joints": joints,
        "step_ms": round(1e3 * step_s, 1),
        "points_sent": points,
        **watch.table(),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=300, help="per row (default: %(default)s)")
    arguments = parser.parse_args()
    cells = [
        (kind, horizon, joints, step_s)
        for kind in ("typical", "wild")
        for horizon, joints, step_s in (
            *((50, joints, 1 / 30) for joints in (6, 7, 14)),
            *((50, 14, step_s) for step_s in (0.02, 0.1, 0.6)),
            (MOST_ACTIONS, 14, 0.02),
        )
    ]
    rows = [measure(*cell, arguments.chunks) for cell in cells]
    print(
        "| chunk | step [ms] | points sent | parse p50 | update p50 | fill p50 | sum p50 | p99 | max [ms] |"
    )
    print("|" + "---|" * 9)
    for row in rows:
        chunk = f"{row['kind']} {row['horizon']} x {row['joints']}"
        parts = " | ".join(f"{row[part]['p50_ms']:.2f}" for part in ("parse", "update", "fill", "sum"))
        late = f"{row['sum']['p99_ms']:.2f} | {row['sum']['max_ms']:.2f}"
        print(f"| {chunk} | {row['step_ms']:g} | {row['points_sent']} | {parts} | {late} |")
    document = {
        "rows": rows,
        "chunks": arguments.chunks,
        "seed": SEED,
        "load": os.getloadavg(),
        **provenance(),
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
