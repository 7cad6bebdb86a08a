"""Which tests of bags there are."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For `-m gpu`, modules without such a test are not even imported: a plain GPU machine has no ROS and no
    mcap, which they need."""
    module = collection_path.suffix == ".py" and config.getoption("markexpr") == "gpu"
    return True if module and "mark.gpu" not in collection_path.read_text() else None
