"""A load that a model cannot have is refused, and so is a precision of which the engine has no stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_policy
from openvla_builders import make_openvla_folder
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.options import check_options
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import PI0
from vla_accel_ros.models.openvla.config import OPENVLA_7B
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.planning.work import ENGINE_PRECISIONS, Work, check_work


def _refused(check: Callable[[str], None]) -> list[str]:
    refused = []
    for precision in ENGINE_PRECISIONS:
        try:
            check(precision)
        except ValueError as error:
            assert f"precision is {precision}" in str(error)
            refused.append(precision)
    return refused


@pytest.mark.parametrize("family", ["pi0", "pi05", "openvla", "smolvla"])
def test_precisions_are_those_of_the_engine(family: str, tmp_path: Path) -> None:
    policy: AnyPolicy
    if family == "openvla":
        policy = load_policy(make_openvla_folder(tmp_path))
    elif family == "smolvla":
        policy = load_policy(make_smolvla_folder(tmp_path / "folder"))
    else:
        policy = make_policy(family)

    def run(precision: str) -> None:
        check_options(policy, EngineConfig(fast=True, precision=precision))

    def plan(precision: str) -> None:
        check_work(policy.config, Work(1, 1, precision=precision))

    assert _refused(plan) == _refused(run)
    plan("all-int8")


def test_cameras_and_words_are_those_of_the_model() -> None:
    check_work(PI0, Work(views=3, prompt=48))
    check_work(OPENVLA_7B, Work(views=3))  # it takes one image of however many cameras
    for work in (Work(views=4), Work(prompt=49)):
        with pytest.raises(ValueError, match="this pi0"):
            check_work(PI0, work)
    with pytest.raises(ValueError, match="has 1 cameras"):
        check_work(replace(PI0, image_names=("one",)), Work())
