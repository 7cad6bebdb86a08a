"""Puts this folder, with the helpers of these tests, on the import path; and the kernels of captured plain
stages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vla_accel_ros.kernels.ops import ops_for
from vla_accel_ros.models.layers.residual import computing


@pytest.fixture
def same_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a GPU the plain functions that a test calls are computed by the kernels of captured stages, so that
    their bits are the same."""
    on_gpu = request.node.get_closest_marker("gpu") is not None
    with computing(ops_for(torch.device("cuda")) if on_gpu else None):
        yield
