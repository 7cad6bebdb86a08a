"""What the sensing tests are given."""

from __future__ import annotations

import pytest
from streams import make_contract

from vla_accel_ros.sensing.contract import Contract


@pytest.fixture
def contract() -> Contract:
    """The simulated arm's contract."""
    return make_contract()
