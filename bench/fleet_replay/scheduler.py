"""The node fleet_scheduler with a replica that takes as long for each chunk as a file of recorded tasks says.

    PYTHONPATH=bench python -m fleet_replay.scheduler TASKS --ros-args -p policy:=kairos ...

Everything but the replica is the node's own. The robot /rN does task N.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np
from rclpy.parameter import Parameter

from fleets.replicas import Undescribed
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.protocol import EncodedObservation, Round
from vla_accel_ros.fleet.replicas.replica import SERVE, Served
from vla_accel_ros.fleet.simulator import traces
from vla_accel_ros.fleet.simulator.traces import Trace
from vla_accel_ros.nodes.fleet.engines import Engines, Making
from vla_accel_ros.nodes.fleet.node import FleetSchedulerNode
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.types import Chunk


class ReplayReplica(Undescribed):
    """A fleet.replicas.replica.Replica: one chunk at a time, for as long as it took. joints: of a chunk."""

    def __init__(self, trace: Trace, joints: int) -> None:
        assert trace.served_s is not None and trace.step_s is not None
        self.name, self.limit, self.network_s = "replay", 1, 0.0
        self.profile = Profile({(SERVE, 1): trace.served_s})
        self._scripts, self._step_s, self._joints = trace.scripts, trace.step_s, joints
        self._timers: dict[Future[Served], threading.Timer] = {}

    def room(self) -> int:
        return self.limit - len(self._timers)

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        script = self._scripts[int(round.robot.removeprefix("/r"))]
        actions = np.zeros((script.chunk, self._joints), np.float32)
        magnitudes, horizon = np.zeros(0, np.float32), script.horizon(round.number)
        chunk = Chunk(
            actions, observation.stamp_ns, self._step_s, 0, 0, magnitudes, execution_horizon=horizon
        )
        took_s = script.serves_s(round.number) or 0.0
        future: Future[Served] = Future()
        timer = threading.Timer(took_s, self._end, (future, Served(round, chunk, took_s)))
        self._timers[future] = timer
        timer.start()
        return future

    def cancel(self, served: Future[Served]) -> None:
        if (timer := self._timers.pop(served, None)) is not None:
            timer.cancel()
            served.cancel()

    def close(self) -> None:
        """End the threads."""
        for future in tuple(self._timers):
            self.cancel(future)

    def _end(self, future: Future[Served], served: Served) -> None:
        if self._timers.pop(future, None) is not None:
            future.set_result(served)


class ReplayEngine:
    """A nodes.fleet.engines.Engines of it."""

    engine = None

    def __init__(self, replica: ReplayReplica) -> None:
        self._replica = replica
        self.replicas, self.updates = (replica,), 0

    def close(self) -> None:
        self._replica.close()


class ReplayNode(FleetSchedulerNode):
    """The node, without a model. The robots' rates bound nothing."""

    burst = 10**9

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.set_parameters([Parameter("model", value="none")])
        self._trace = trace

    def _start(self, making: Making) -> Engines:
        return ReplayEngine(ReplayReplica(self._trace, len(making.contract.action_names)))


if __name__ == "__main__":
    sys.exit(run(partial(ReplayNode, traces.load(Path(sys.argv[1]))), sys.argv[2:]))
