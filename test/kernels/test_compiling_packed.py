"""The kernels of packed forwards compile for the devices we name, within what they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from architectures import ARCHITECTURES, REGISTERS
from each_capability import TIMEOUT_S, needs_of

SCRIPT = Path(__file__).with_name("compiling_packed.py")
pytestmark = pytest.mark.timeout(TIMEOUT_S + 100)


@pytest.fixture(scope="module")
def needs() -> dict[str, list[dict[str, Any]] | str]:
    return needs_of(SCRIPT, {name: [] for name in ARCHITECTURES})


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_kernels_compile_and_fit(needs: dict[str, list[dict[str, Any]] | str], capability: str) -> None:
    of_all = needs[capability]
    assert not isinstance(of_all, str), of_all
    assert [need["kernel"] for need in of_all] == [
        *("_rms_norm", "_rotary_write", "_attend", "_glu"),
        *("_rms_norm", "_rotary_write", "_attend", "_combine", "_glu"),
    ]
    for need in of_all:
        assert need["shared"] <= ARCHITECTURES[capability].shared_bytes and need["stack"] == 0, need
        assert need["registers"] * need["threads"] <= REGISTERS, need
