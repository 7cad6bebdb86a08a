"""A trajectory node that is held up between its decisions and its messages, as on a busy machine.

Every third message is HELD_UP_S late when it is about to be filled: those to the arm, and those to the
gripper, which come after them.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.nodes.adapters.joint_trajectory import TrajectoryMessage
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.trajectory.node import TrajectoryNode

HELD_UP_S = 0.35
SAYS = "held up"

fill, count = TrajectoryMessage.fill, itertools.count(1)


def held_up(message: TrajectoryMessage, *arguments: Any, **more: Any) -> JointTrajectory:
    if next(count) % 3 == 0:
        time.sleep(HELD_UP_S)
        print(SAYS, file=sys.stderr, flush=True)
    return fill(message, *arguments, **more)


if __name__ == "__main__":
    TrajectoryMessage.fill = held_up  # type: ignore[assignment, method-assign]
    raise SystemExit(run(TrajectoryNode))
