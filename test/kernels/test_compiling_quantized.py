"""Kernels for quantised weights and int8 rows compile for the devices they are for, within what those have.

int8, int4 and w8a8: all; fp8, of weights and of rows: Ada (sm_89) and later. Rows in 8 bits are multiplied by
matrix units, as they are; but of fp8, tiles of a word's row are widened where those want 64 rows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from architectures import ARCHITECTURES, REGISTERS
from each_capability import needs_of

SCRIPT = Path(__file__).with_name("compiling_quantized.py")
FEW = Counter({"_project": 2, "_rotary_qkv": 1, "_gated_up": 1, "_multiply": 1})
ROWS = Counter(["_rms_norm_rows", "_layer_norm_rows", "_glu_rows", "_gelu_rows"])
INT8 = Counter({"_int8_product": 9, "_rms_norm_int8": 2, "_add_norm_int8": 2})
INT8 += Counter(["_quantize", "_layer_norm_int8"])


@pytest.fixture(scope="module")
def needs() -> dict[str, list[dict[str, Any]] | str]:
    return needs_of(SCRIPT, {name: [] for name in ARCHITECTURES})


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_kernels_compile_and_fit(needs: dict[str, list[dict[str, Any]] | str], capability: str) -> None:
    kinds = 3 if int(capability) >= 89 else 2
    of_all = needs[capability]
    assert not isinstance(of_all, str), of_all
    wanted = sum((FEW for _ in range(kinds)), ROWS if kinds == 3 else Counter())
    assert Counter(need["kernel"] for need in of_all) == wanted + INT8 + (INT8 if kinds == 3 else Counter())
    products = [need for need in of_all if need["kernel"] == "_int8_product"]
    assert all(need["int8"] for need in products[:9])
    narrow = 2 if capability in ("90", "100") else 0
    assert sum(need["fp8"] for need in products[9:]) == len(products[9:]) - narrow
    for need in of_all:
        assert need["stack"] == 0, need
        assert need["shared"] <= ARCHITECTURES[capability].shared_bytes, need
        assert need["registers"] * need["threads"] <= REGISTERS, need
