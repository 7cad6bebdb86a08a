"""The system under test."""

from __future__ import annotations

import pytest
from scheduled import System


@pytest.fixture
def system() -> System:
    return System()
