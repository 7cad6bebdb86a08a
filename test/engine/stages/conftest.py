"""What several tests of stages are given; and this folder is on the import path."""

from __future__ import annotations

from pathlib import Path

import pytest
from smolvla_recording import make_smolvla_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a SmolVLA."""
    return make_smolvla_folder(tmp_path_factory.mktemp("smolvla") / "folder")
