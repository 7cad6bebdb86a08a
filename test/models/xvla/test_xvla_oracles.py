"""X-VLA against recordings of lerobot's: every checkpoint in the folder of oracles, in float32 and in
bfloat16."""

from __future__ import annotations

import pytest
import torch
from oracle_agreement import agree, distance, in_half
from xvla_oracle import XVLAOracle, xvla_names

NAMES = xvla_names()


@pytest.fixture(params=NAMES, scope="module")
def xvla(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> XVLAOracle:
    return XVLAOracle.load(request.param, tmp_path_factory.mktemp("xvla") / "folder")


@pytest.fixture(autouse=True)
def without_gradients() -> object:
    with torch.no_grad():
        yield


def test_xvla_inputs(xvla: XVLAOracle) -> None:
    inputs = xvla.inputs
    assert inputs.tokens.tolist() == xvla["token_ids"][0].tolist()
    assert inputs.more["domain"].tolist() == xvla["model_in.domain_id"].tolist()
    assert torch.equal(inputs.state, xvla["model_in.proprio"][0])
    assert distance(inputs.images, xvla["model_in.image_input"][0, : len(inputs.images)]) < 1e-6


def test_xvla_image_tokens_and_features(xvla: XVLAOracle) -> None:
    agree(xvla, XVLAOracle.image_tokens, xvla["vision.projected"])
    agree(xvla, XVLAOracle.features, xvla["prefix.vlm_features"])


def test_xvla_predicts_the_clean_actions_of_every_step(xvla: XVLAOracle) -> None:
    agree(xvla, XVLAOracle.predictions, xvla["steps.predicted_action"])


def test_xvla_actions(xvla: XVLAOracle) -> None:
    agree(xvla, XVLAOracle.sampled, xvla["actions_model"])


def test_xvla_actions_of_robots_of_two_domains_in_one_batch(xvla: XVLAOracle) -> None:
    recorded = xvla["batch2.actions_model"]
    agree(xvla, lambda xvla: xvla.sampled("batch2.noise", "batch2.domain_id"), recorded)


def test_xvla_float32_recordings_computed_in_bfloat16(
    xvla: XVLAOracle, tmp_path: pytest.TempPathFactory
) -> None:
    half = XVLAOracle.load(xvla.name, tmp_path / "folder", dtype="bfloat16")  # type: ignore[operator]
    in_half(half.image_tokens(), xvla["vision.projected"], half.layers)
    in_half(half.features(), xvla["prefix.vlm_features"], half.layers)
    in_half(half.sampled(), xvla["actions_model"], half.layers)
