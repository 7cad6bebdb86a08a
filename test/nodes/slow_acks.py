"""A trajectory node whose messages are acknowledged ACKNOWLEDGED_S after they were sent, as on a slow
network: later than the next message is due."""

from __future__ import annotations

import time
from typing import Any

from rclpy.publisher import Publisher

from vla_accel_ros.nodes.adapters.joint_trajectory import JointTrajectoryAdapter
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.trajectory.node import TrajectoryNode

ACKNOWLEDGED_S = 0.12

make, sent_s = JointTrajectoryAdapter.__init__, dict[Publisher, float]()


def made(adapter: JointTrajectoryAdapter, setup: Any) -> None:
    make(adapter, setup)
    publisher = adapter._publisher
    publish = publisher.publish

    def published(message: Any) -> None:
        sent_s[publisher] = time.monotonic()
        publish(message)

    def acknowledged(_: object) -> bool:
        return time.monotonic() >= sent_s.get(publisher, 0.0) + ACKNOWLEDGED_S

    vars(publisher).update(publish=published, wait_for_all_acked=acknowledged)


if __name__ == "__main__":
    JointTrajectoryAdapter.__init__ = made  # type: ignore[assignment, method-assign]
    raise SystemExit(run(TrajectoryNode))
