"""The action modes of an X-VLA, and its views without a camera; the values are those of lerobot's action
spaces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from xvla_oracle import whole_folder

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.xvla.policy import XVLAPolicy


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> XVLAPolicy:
    loaded = load_policy(whole_folder("xvla/checkpoint", Path(tmp_path_factory.mktemp("xvla")) / "policy"))
    assert isinstance(loaded, XVLAPolicy)
    return loaded


@pytest.mark.parametrize(
    ("mode", "grippers"),
    [
        ("ee6d", {9, 19}),
        ("joint", {6, 13}),
        ("so101_bimanual", {5, 11}),
        ("agibot_ee6d", set()),
        ("franka_joint7", set()),
        ("auto", set()),
    ],
)
def test_grippers_are_probabilities_that_the_network_does_not_see(
    policy: XVLAPolicy, mode: str, grippers: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(mode: str) -> np.ndarray:
        monkeypatch.setattr(policy.model, "config", replace(policy.config, action_mode=mode))
        return policy.actions(torch.full((3, width), 2.0), np.zeros(policy.config.state_dim))

    def network(x: Tensor, t: Tensor, state: Tensor, rows: Tensor, domain: Tensor) -> Tensor:
        seen.extend((x, state))
        return x

    seen: list[Tensor] = []
    width = policy.config.action_dim
    assert width == 20
    auto = answered("auto")
    assert set(np.flatnonzero((answered(mode) != auto).any(axis=0)).tolist()) == grippers
    monkeypatch.setattr(policy.model, "denoise", network)
    one = torch.ones(1)
    x = torch.ones(1, 3, width)
    policy.denoise(x, one, -one, x, torch.ones(1, policy.config.state_dim), x, one)
    for given in seen:
        zeros = (given.reshape(-1, given.shape[-1])[0] == 0).nonzero().flatten()
        assert set(zeros.tolist()) == {channel for channel in grippers if channel < given.shape[-1]}


def test_views_without_a_camera_are_rows_of_zeros(policy: XVLAPolicy) -> None:
    config = policy.config
    image = torch.randn(1, 1, 4, config.text.width, generator=torch.Generator().manual_seed(0))
    words, others = policy.model.prefix(image, torch.ones(1, 5, dtype=torch.int64))
    assert words.shape[1] == 4 + 5
    assert others.shape[1] == (config.views - 1) * 4
    assert not others.any()
