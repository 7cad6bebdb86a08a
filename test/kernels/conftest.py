"""The kernels' tests run where there is no GPU, too; what is in bench/ is importable, as for its scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import interpreted  # noqa: F401
import pytest
import torch
from drawing import DTYPES

sys.path.append(str(Path(__file__).parents[2] / "bench"))


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
