"""An arm with a force sensor, whose controllers are streamed commands or take whole trajectories."""

from __future__ import annotations

import pytest
from force_arm import ForceArm


@pytest.fixture(params=[True, False], ids=["streamed", "trajectories"])
def streamed_or_not(request) -> bool:
    return request.param


@pytest.fixture
def arm(streamed_or_not) -> ForceArm:
    return ForceArm(streamed_or_not)
