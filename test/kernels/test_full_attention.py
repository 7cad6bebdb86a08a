"""triton/full_attention.py computes what its reference does, for heads of any size and strides."""

from __future__ import annotations

import pytest
import torch
from drawing import Drawing, assert_near, poison

from vla_accel_ros.kernels.reference import attention
from vla_accel_ros.kernels.triton import full_attention as kernels
from vla_accel_ros.kernels.triton.launch import Scratch


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


@pytest.mark.parametrize("parts", [2, 5])
def test_parts_of_the_keys_are_combined(parts: int) -> None:
    draw, heads, keys = Drawing(parts), 3, 150
    q, k, v = draw(2, 9, heads, 16), draw(2, keys, heads, 16), draw(2, keys, heads, 16)
    mask, tail = draw(2, keys) > 0, (draw(2, 7, heads, 16), draw(2, 7, heads, 16))
    mask[0, :100] = False  # a part in which nothing is seen
    scratch = Scratch.of(q.device)
    for seen, more in ((None, None), (mask, tail)):
        expected, ours = (poison(2, 9, heads * 16) for _ in range(2))
        attention.attend_full(q, k, v, expected, seen, more)
        kernels.attend_full(q, k, v, ours, seen, more, scratch=scratch, launch=kernels.Launch(16, 32, parts))
        assert_near(ours, expected, torch.float32)


@pytest.mark.parametrize(
    ("tokens", "heads", "keys", "head", "room", "expected"),
    [
        (32, 24, 120, 128, 450, (16, 128, 1, 2)),
        (32, 24, 120, 128, 200, (16, 64, 1, 2)),
        (330, 16, 330, 64, 900, (64, 128, 1, 3)),
        (16, 8, 19200, 128, 450, (16, 64, 24, 3)),
    ],
)
def test_programs_fill_the_gpu_and_fit(
    tokens: int, heads: int, keys: int, head: int, room: int, expected: tuple[int, ...]
) -> None:
    """The fastest of a sweep on an H200, but for the second, whose shared memory is an RTX 4090's."""
    launch = kernels.launch_of(tokens, heads, keys, head, room)
    assert launch == expected and launch.stages * launch.keys <= room
