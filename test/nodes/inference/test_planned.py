"""The contract's rates against a plan, as inference says it."""

from __future__ import annotations

import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.inference.planned import NOTHING, Planned
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.planning.sizes import MODELS

H200 = "NVIDIA H200"


@pytest.fixture(scope="module")
def contract() -> Contract:
    return Contract.load(demo_contract())


def test_rates_that_can_be_met_are_no_warning(contract: Contract) -> None:
    planned = Planned(MODELS["pi05"], H200, contract, {"vision": 10.0, "action": 10.0})
    line = planned.status()
    assert not planned.late and line.level == DiagnosticStatus.OK
    assert line.name == "plan" and line.message.startswith("the plan keeps the rates")


def test_rates_that_cannot_be_met_are_said_with_what_mends_them(contract: Contract) -> None:
    planned = Planned(MODELS["pi05"], H200, contract, {"vision": 30.0, "action": 300.0})
    line = planned.status()
    assert planned.late and line.level == DiagnosticStatus.WARN
    assert line.message.startswith("late by the plan") and "staggered: 10" in line.message
    assert "\n" not in line.message
    seated = Planned(MODELS["pi05"], H200, contract, {"vision": 30.0, "action": 300.0}, seats=10)
    assert not seated.late


@pytest.mark.parametrize(
    ("gpu", "precision", "said"),
    [
        ("", "exact", NOTHING),
        ("NVIDIA T4", "exact", "no plan: there is no device file of NVIDIA T4"),
        ("NVIDIA A100", "fp8", "no plan: NVIDIA A100"),
    ],
)
def test_where_there_is_no_plan_that_is_said(contract: Contract, gpu: str, precision: str, said: str) -> None:
    planned = Planned(MODELS["pi0"], gpu, contract, {"vision": 1e6, "action": 1e6}, precision=precision)
    assert planned.line.startswith(said) and not planned.late
    assert planned.status().level == DiagnosticStatus.OK
