"""Makes what is in bench/ importable, as it is for its scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import interpreted  # noqa: F401
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "bench"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """What a command sets for itself is given back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
