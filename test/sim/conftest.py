"""One robot for all simulator tests: each resets it, and a reset leaves nothing behind (test_scene)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from training.expert import Expert
from vla_accel_ros.sim.robot import SimRobot


@pytest.fixture(scope="session")
def robot() -> Iterator[SimRobot]:
    robot = SimRobot()
    yield robot
    robot.close()


@pytest.fixture(scope="session")
def expert(robot: SimRobot) -> Expert:
    return Expert(robot)
