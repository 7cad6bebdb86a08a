"""What the tests of contracts are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_accel_ros.contract.contract import Contract

SIM_ARM = Path(__file__).resolve().parents[2] / "config" / "contracts" / "sim_arm.yaml"


@pytest.fixture
def contract() -> Contract:
    """The simulated arm's contract."""
    return Contract.load(SIM_ARM)
