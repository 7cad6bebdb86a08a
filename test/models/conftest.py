"""What the model tests are given, and which of them there are.

Recordings of a kind that the folder of oracles does not hold are not asked for, rather than skipped. That the
folder holds any is a test of its own (test_oracles.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = [item for item in items if any(map(_is_empty, item.iter_markers("skip")))]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]


def _is_empty(mark: pytest.Mark) -> bool:
    """What pytest puts on a test whose parameters are none."""
    return str(mark.kwargs.get("reason", "")).startswith("got empty parameter set")


@pytest.fixture
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
