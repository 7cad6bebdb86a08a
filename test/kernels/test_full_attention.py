"""triton/full_attention.py computes what its reference does, for heads of any size and strides."""

from __future__ import annotations

import pytest
import torch
from drawing import DTYPES, Drawing, assert_near, poison

from vla_accel_ros.kernels.reference import attention
from vla_accel_ros.kernels.triton import full_attention as kernels


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head", [16, 24, 48, 72, 128])
@pytest.mark.parametrize(("tokens", "keys"), [(1, 1), (5, 64), (41, 41), (70, 131)])
def test_attend_full(dtype: torch.dtype, head: int, tokens: int, keys: int) -> None:
    draw, batch, heads = Drawing(tokens), 2, 3
    q = draw(batch, tokens, 3, heads, head, dtype=dtype)[:, :, 1]
    k = draw(batch, heads, keys, head, dtype=dtype).transpose(1, 2)
    v = draw(batch, keys, heads, 2 * head, dtype=dtype)[..., head:]
    mask = draw(batch, keys) > 0
    mask[:, keys // 2] = True
    tail = draw(batch, heads, 7, head, dtype=dtype).transpose(1, 2), draw(batch, 7, heads, head, dtype=dtype)
    for seen, more in ((None, None), (mask, None), (mask, tail)):
        expected, ours = (poison(batch, tokens, heads * head, dtype=dtype) for _ in range(2))
        attention.attend_full(q, k, v, expected, seen, more)
        kernels.attend_full(q, k, v, ours, seen, more)
        assert_near(ours, expected, dtype)


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    draw = Drawing(0)
    q, k, v = (draw(1, 3, 2, 16) for _ in range(3))
    out = poison(1, 3, 32)
    kernels.attend_full(q, k, v, out, torch.zeros(1, 3, dtype=torch.bool, device=q.device))
    assert not out.any()
