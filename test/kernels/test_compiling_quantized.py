"""Kernels for quantised weights and int8 rows compile for the devices they are for, within what those have.

int8, int4 and w8a8: all; fp8, of weights and of rows: Ada (sm_89) and later; nvfp4: Blackwell. Matrix units
multiply int8 rows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from architectures import ARCHITECTURES, REGISTERS
from each_capability import TIMEOUT_S, needs_of

SCRIPT = Path(__file__).with_name("compiling_quantized.py")
pytestmark = pytest.mark.timeout(TIMEOUT_S + 100)
FEW = Counter({"_project": 2, "_rotary_qkv": 1, "_gated_up": 1, "_multiply": 1})
ROWS = Counter(["_rms_norm_rows", "_layer_norm_rows", "_glu_rows", "_gelu_rows"])
FP4 = Counter(["_rms_norm_rows", "_glu_rows"])
PRODUCTS, OF_TUNING = 12, 3
"""Launches of products of rows in 8 bits; how many, the last, are large tiles that `vla tune` times."""
INT8 = Counter({"_int8_product": PRODUCTS, "_rms_norm_int8": 2, "_add_norm_int8": 2})
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
    wanted += FP4 if int(capability) >= 100 else Counter()
    assert Counter(need["kernel"] for need in of_all) == wanted + INT8
    products = [need for need in of_all if need["kernel"] == "_int8_product"]
    assert all(need["int8"] and not need["stores_one_by_one"] for need in products)
    tried = {id(need) for need in products[-OF_TUNING:]}
    for need in of_all:
        of_tuning = id(need) in tried
        # Triton multiplies int8 on a B200 by instructions whose sums are in registers. The largest tile wants
        # a few more than there are on sm_8x, where `vla tune` will hardly choose it. Few-row products do on
        # Thor and GB10, and rows of nvfp4 on all that have it, where nothing was tried.
        few = 32 if capability in ("110", "121") else 16 if of_tuning else 8 if int(capability) >= 100 else 0
        assert need["stack"] <= (64 if of_tuning and capability == "100" else few), need
        if not (of_tuning and ARCHITECTURES[capability].shared_bytes < 100 << 10):  # passed over there
            assert need["shared"] <= ARCHITECTURES[capability].shared_bytes, need
        assert need["registers"] * need["threads"] <= REGISTERS, need
