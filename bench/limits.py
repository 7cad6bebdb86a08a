"""The cost of a chunk in the trajectory node, from its message to the published JointTrajectory, on one core.

    python bench/limits.py [--chunks N]

Chunks of a contract's joints, or of 7 or 14 such joints, 10 a second: "typical" ones follow a smooth motion
within limits; "wild" ones are as wild as the node follows them (to and fro at five times the speed limit), so
that every joint has to be led at every step and back to rest. Motion decides, as in the node: chunks are
parsed, followed, and put into a message. Times are CPU time of this thread alone, in milliseconds: `update`
is what is not `parse` or `fill`.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np

from handovers import Clock, Parameters, Process, TrajectoryLine, make_contract, make_joints
from run import Bench, Given, Row, main
from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.parts import ChunkTiming
from vla_accel_ros.control.chunking.plausibility import MOST_ACTIONS, TOO_FAST
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters.joint_trajectory import TrajectoryMessage
from vla_accel_ros.nodes.messages import convert

SEED, WARM_UP = 0, 30
BEGIN_NS = 1_000_000_000_000
PERIOD_NS, AGE_NS, MAX_AGE_S = 100_000_000, 50_000_000, 0.5
_Result = TypeVar("_Result")


class Stopwatch:
    """Milliseconds of CPU of each part of each chunk; the last `chunks` count."""

    def __init__(self, chunks: int) -> None:
        self.chunks, self.parts = chunks, dict[str, list[float]]()

    def time(self, part: str, body: Callable[[], _Result]) -> _Result:
        """Do it and write down how long it took."""
        start = time.thread_time()
        result = body()
        self.parts.setdefault(part, []).append(1e3 * (time.thread_time() - start))
        return result

    def table(self) -> dict[str, dict[str, float]]:
        """Median, p99 and maximum of each part and of the sum."""
        parts = {name: np.array(taken[-self.chunks :]) for name, taken in self.parts.items()}
        parts["update"] = parts["sum"] - parts["parse"] - parts["fill"]
        return {
            name: {
                "p50_ms": round(float(np.median(parts[name])), 3),
                "p99_ms": round(float(np.quantile(parts[name], 0.99)), 3),
                "max_ms": round(float(parts[name].max()), 3),
            }
            for name in ("parse", "update", "fill", "sum")
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
        most = np.minimum(0.49 * TOO_FAST * limits.velocity * step_s, limits.upper)
        return rng.uniform(-most, most, (horizon, len(most))).astype(np.float32)
    t = stamp_ns * 1e-9 + np.arange(1, horizon + 1) * step_s
    swing = 0.4 * limits.velocity
    return (swing * np.sin(t[:, None] + np.arange(len(swing)))).astype(np.float32)


def measure(kind: str, horizon: int, joints: int, step_s: float, chunks: int) -> Row:
    """One row of the table."""
    rng, limits, watch = np.random.default_rng(SEED), make_limits(joints), Stopwatch(chunks)
    names, now_ns, lengths = tuple(f"joint_{i}" for i in range(joints)), BEGIN_NS, list[int]()
    sender = TrajectoryMessage(names)

    def publish(path: Trajectory, start_ns: int, stamped: bool) -> None:
        watch.time("fill", partial(sender.fill, path, start_ns, stamped))
        lengths.append(len(path))

    timing = ChunkTiming(step_s, MAX_AGE_S)
    contract = make_contract("joint_trajectory", make_joints(names, limits), chunk=timing)
    clock, line = Clock(lambda: now_ns, simulated=True), TrajectoryLine(publish)
    process = Process(contract, Parameters(), clock, lambda _: line)
    buffer, position = process.robot.follower.buffer, np.zeros(joints)
    for request in range(WARM_UP + chunks):
        now_ns += PERIOD_NS
        if lengths:
            position, _ = buffer.reference(now_ns)
        process.joints(names, position, now_ns)
        process.watch()
        actions = make_actions(kind, rng, now_ns - AGE_NS, horizon, step_s, limits)
        message = ActionChunk(
            joint_names=list(names), horizon=horizon, action_dim=joints, step_dt_s=step_s, request_id=request
        )
        message.actions = array("f", actions.tobytes())
        convert.set_stamp(message.header.stamp, now_ns - AGE_NS)
        decode = partial(convert.chunk_from_message, message, names)
        received, number = partial(watch.time, "parse", decode), (now_ns - AGE_NS, request)
        sent = len(lengths)
        watch.time("sum", partial(process.motion.receive, received, number))
        if request >= WARM_UP:
            assert len(lengths) == sent + 1 and buffer.report is not None
            assert len(buffer.report.limited) == (joints if kind == "wild" else 0), buffer.report
    return {
        "kind": kind,
        "horizon": horizon,
        "joints": joints,
        "step_ms": round(1e3 * step_s, 1),
        "points_sent": max(lengths[-chunks:]),
        **watch.table(),
    }


def rows(given: Given) -> Iterator[Row]:
    """Typical and wild chunks of several sizes."""
    sizes = [(50, joints, 1 / 30) for joints in (6, 7, 14)]
    sizes += [(50, 14, step_s) for step_s in (0.02, 0.1, 0.6)] + [(MOST_ACTIONS, 14, 0.02)]
    for kind in ("typical", "wild"):
        for size in sizes:
            yield measure(kind, *size, given.chunks)


def options(add: Callable[..., Any]) -> None:
    """See Bench.options."""
    add("--chunks", type=int, default=300, help="per row (default: %(default)s)")


BENCH = Bench("limits", rows, options, {"seed": SEED}, rows="rows", smoke="--chunks 2")

if __name__ == "__main__":
    sys.exit(main(BENCH))
