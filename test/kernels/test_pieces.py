"""What vla tune and bench/engine.py time of kernels is what they compute: each against its reference."""

from __future__ import annotations

import pytest
import torch
from builders import make_config
from drawing import CUDA, DEVICE

from vla_accel_ros.kernels.candidates import CANDIDATES
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import TritonOps
from vla_accel_ros.kernels.tuning import Table
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.tools.tune import pieces


def test_pieces_of_a_small_model_are_near_their_twins(kind: str) -> None:
    dtype = torch.bfloat16 if CUDA else torch.float16
    ops = TritonOps(DEVICE, Table(Gpu(4)))
    found = dict(pieces.errors(make_config(kind), 21, DEVICE, 2, ops, dtype))
    assert found.keys() == CANDIDATES.keys()
    assert all(error < pieces.NEAR for error in found.values()), found


@pytest.mark.gpu
@pytest.mark.parametrize("config", [PI0, PI05], ids=["pi0", "pi05"])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_pieces_of_the_published_sizes_are_near_their_twins(config: PiConfig, batch: int) -> None:
    for name, error in pieces.errors(config, 1100, DEVICE, batch, TritonOps(DEVICE)):
        assert error < pieces.NEAR, name
