"""The node fleet_scheduler, configured with the parameters of the command line: prints which of two requests
its rule chooses. Both wait at 100 s; /old began long ago, /new has more motion in a chunk."""

from __future__ import annotations

import sys
from typing import Any

import rclpy
from fleet_builders import make_request
from fleet_stand_ins import TimedReplica
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter

from vla_accel_ros.nodes.fleet.engines import Making
from vla_accel_ros.nodes.fleet.node import FleetSchedulerNode

NOW_S = 100.0
OF_KAIROS = (
    make_request("/old", 0.0, waited_s=39.0, last_execution_s=0.5, asked_s=70.0),
    make_request("/new", 0.0, waited_s=31.0, last_execution_s=20.0, asked_s=100.0),
)
"""Wait ratios of 39 and 31 %; 30 s of waiting scale half a second of execution to 15.5 s, below 20 s."""
OF_SRPT = make_request("/old", 0.0, rounds=2), make_request("/new", 90.0, rounds=10)
"""14 rounds are left, or 6, of 16; the ages are 100 s and 10 s."""


class TimedEngines:
    """Of a replica without a model."""

    engine = None
    replicas = (TimedReplica(),)
    updates = 0

    def close(self) -> None:
        pass


class Node(FleetSchedulerNode):
    def _start(self, making: Making) -> Any:
        return TimedEngines()


def main() -> int:
    rclpy.init(args=sys.argv)
    node = Node()
    node.set_parameters([Parameter("model", value="none")])
    assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS, node.trouble
    assert node._scheduler is not None
    ready = OF_SRPT if node.get_parameter("rule").value == "aged_srpt" else OF_KAIROS
    batch = node._scheduler._dispatcher.rule.next("r", ready, NOW_S)
    assert batch is not None
    print(batch.requests[0].robot)
    node.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
