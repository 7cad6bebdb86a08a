"""triton/heads.py computes what its reference does, for any numbers of heads."""

from __future__ import annotations

import pytest
import torch
from drawing import Drawing, assert_near, poison

from vla_accel_ros.kernels.reference import heads
from vla_accel_ros.kernels.triton import heads as kernels


@pytest.mark.parametrize("paired", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize(("queries", "keys", "size"), [(4, 4, 16), (5, 2, 12), (3, 0, 128)])
def test_rotate_heads(dtype: torch.dtype, paired: bool, queries: int, keys: int, size: int) -> None:
    draw, batch, tokens, count = Drawing(size), 2, 5, queries + keys
    product = draw(batch, tokens, (count + 1) * size, dtype=dtype)  # values are behind them
    x = product[:, :, : count * size].unflatten(2, (count, size))
    angles = draw(tokens, size // 2)
    of_head = draw(size, dtype=dtype), draw(size, dtype=dtype)
    of_all = draw(queries * size, dtype=dtype), draw(max(1, keys) * size, dtype=dtype)
    for norms, whole in ((None, False), (of_head, False), (of_all, True)):
        for cos, sin in ((angles.cos(), angles.sin()), (None, None)):
            expected, ours = (poison(*x.shape, dtype=dtype) for _ in range(2))
            heads.rotate_heads(x, queries, cos, sin, expected, norms, 0.01, whole, paired)
            kernels.rotate_heads(x, queries, cos, sin, ours, norms, 0.01, whole, paired)
            assert_near(ours, expected, dtype)
