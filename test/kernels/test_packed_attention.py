"""triton/packed_attention.py and triton/rows.py compute what their references do, wherever the keys and
values lie.
"""

from __future__ import annotations

import pytest
import torch
from drawing import DEVICE, Drawing, assert_near, poison
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vla_accel_ros.kernels.reference import packed_attention, rows
from vla_accel_ros.kernels.reference.linear import ACTIVATIONS
from vla_accel_ros.kernels.triton import packed_attention as kernels
from vla_accel_ros.kernels.triton import rows as rows_kernels
from vla_accel_ros.kernels.work import NOWHERE, Rows, Shape, Where, Work, aligned, where
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import Span, sees

LAYERS, LAYER = 2, 1


def shape(count: int, causal: bool = False, alone: int = 0) -> Shape:
    return Shape(count, tuple(sees(count, causal, alone)))


class Memory:
    """A pool of slots and one of pages, with random keys and values."""

    def __init__(self, draw: Drawing, kv_heads: int, width: int, dtype: torch.dtype) -> None:
        slots, pages = (4, LAYERS, kv_heads, 70, width), (9, LAYERS, kv_heads, 5, width)
        self.slots = draw(*slots, dtype=dtype), draw(*slots, dtype=dtype)
        self.pages = draw(*pages, dtype=dtype), draw(*pages, dtype=dtype)

    def slot(self, place: int, start: int, end: int) -> Span:
        return Span(*self.slots, place, start, end)

    def page(self, place: int, tokens: int) -> Span:
        return Span(*self.pages, place, 0, tokens)


def looking(*past: Span, start: int = 0, out: Span | None = None, valid: int | None = None) -> Rows:
    at = NOWHERE if out is None else where(out)
    if valid is not None:
        at = at._replace(tokens=valid)
    return Rows(past, [where(part) for part in past], start, at, out)


def make_work(shapes: list[Shape], now: list[Rows], groups: int, block_m: int = 16, splits: int = 1) -> Work:
    work = Work(shapes, sum(len(one.past) for one in now) + 3, groups, DEVICE, block_m, splits)
    work.point(now)
    return work


def tables(width: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(200)[:, None] * (1e4 ** (-torch.arange(0, width, 2) / width))
    return angles.cos().to(DEVICE), angles.sin().to(DEVICE)


def both(qkv: Tensor, work: Work, heads: int, width: int) -> tuple[Tensor, Tensor]:
    made = []
    for attend in (kernels.attend, packed_attention.attend):
        out = poison(work.rows, heads * width, dtype=qkv.dtype)
        attend(qkv, work, LAYER, heads, width, out)
        made.append(out)
    return made[0], made[1]


@pytest.mark.parametrize("heads", [(6, 2), (3, 3)], ids=str)
@pytest.mark.parametrize("width", [8, 72])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_prefill_and_riders_and_an_answer_in_pages(
    heads: tuple[int, int], width: int, dtype: torch.dtype, splits: int
) -> None:
    draw = Drawing()
    memory = Memory(draw, heads[1], width, dtype)
    shapes = [shape(11, causal=True), shape(7, alone=1), shape(1), shape(1), shape(1)]
    now = [
        looking(),
        looking(memory.slot(3, 0, 70)),
        looking(memory.slot(1, 0, 33)),
        looking(memory.slot(1, 0, 64), memory.page(8, 5), memory.page(0, 5), memory.page(3, 2)),
    ]
    work = make_work(shapes, now, heads[0] // heads[1], splits=splits)
    qkv = draw(work.rows, (heads[0] + 2 * heads[1]) * width, dtype=dtype)
    kernel, expected = both(qkv, work, heads[0], width)
    assert_near(kernel, expected, dtype)
    assert_near(kernel[-1], qkv[-1, -heads[1] * width :].unflatten(0, (heads[1], -1)).repeat_interleave(
        heads[0] // heads[1], dim=0
    ).flatten(), dtype)  # fmt: skip  # an idle row sees itself


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("block_m", [16, 64])
def test_published_head_sizes(width: int, block_m: int) -> None:
    draw = Drawing(1)
    memory = Memory(draw, 1, width, torch.float16)
    now = [looking(memory.slot(0, 0, 9)), looking(memory.slot(1, 2, 70), memory.page(4, 3))]
    work = make_work([shape(19, causal=True), shape(1)], now, 2, block_m, splits=2)
    assert_near(*both(draw(20, 4 * width, dtype=torch.float16), work, 2, width), torch.float16)


@settings(max_examples=8)
@given(data=st.data(), splits=st.integers(1, 5), kv_heads=st.integers(1, 2), groups=st.integers(1, 3))
def test_any_segments(data: st.DataObject, splits: int, kv_heads: int, groups: int) -> None:
    draw = Drawing(data.draw(st.integers(0, 99)))
    memory, heads, width = Memory(draw, kv_heads, 8, torch.float32), kv_heads * groups, 8
    shapes, now = [], []
    for _ in range(data.draw(st.integers(1, 6), label="segments")):
        shapes.append(shape(data.draw(st.integers(1, 20), label="rows"), data.draw(st.booleans())))
        lengths = data.draw(st.lists(st.integers(0, 5), max_size=4), label="pages")
        past = [memory.page(place, length) for place, length in enumerate(lengths)]
        prefix = data.draw(st.integers(0, 70), label="prefix")
        now.append(looking(memory.slot(data.draw(st.integers(0, 3)), 0, prefix), *past))
    work = make_work(shapes, now, groups, splits=splits)
    kernel, expected = both(draw(work.rows, (heads + 2 * kv_heads) * width), work, heads, width)
    assert_near(kernel, expected, torch.float32)


def test_the_same_work_serves_other_lengths() -> None:
    """What a captured graph relies on: nothing but the table changes."""
    draw = Drawing(2)
    memory = Memory(draw, 1, 8, torch.float32)
    work = Work([shape(1), shape(1)], 8, 2, DEVICE, splits=2)
    addresses = [work.segments.data_ptr(), work.parts.data_ptr(), work.begin.data_ptr()]
    for length in (1, 40, 70):
        work.point([looking(memory.slot(0, 0, length)), looking(memory.page(2, 4), memory.slot(1, 5, 9))])
        assert_near(*both(draw(2, 4 * 8), work, 2, 8), torch.float32)
    work.point([looking(memory.page(1, 1))])
    assert_near(*both(draw(2, 4 * 8), work, 2, 8), torch.float32)
    assert addresses == [work.segments.data_ptr(), work.parts.data_ptr(), work.begin.data_ptr()]


@pytest.mark.parametrize("heads", [(4, 1), (3, 3), (9, 4)], ids=str)
@pytest.mark.parametrize("width", [8, 72])
def test_rotary_positions_and_the_writing_of_keys_and_values(
    heads: tuple[int, int], width: int, dtype: torch.dtype
) -> None:
    """Rows beyond those that are valid, idle segments and other layers leave memory as it was."""
    made = []
    for module in (kernels, packed_attention):
        draw = Drawing(3)
        memory = Memory(draw, heads[1], width, dtype)
        now = [
            looking(start=5, out=memory.slot(2, 7, 13), valid=6),
            looking(start=100, out=memory.page(4, 1)),
        ]
        work = make_work([shape(8, causal=True), shape(1), shape(1)], now, heads[0] // heads[1])
        qkv = draw(work.rows, (heads[0] + 2 * heads[1]) * width, dtype=dtype)
        module.rotary_write(qkv, *tables(width), work, LAYER, heads[0])
        made.append((qkv, *memory.slots, *memory.pages))
    for kernel, expected in zip(*made, strict=True):
        assert_near(kernel, expected, dtype)
    untouched = Memory(Drawing(3), heads[1], width, dtype)
    assert torch.equal(made[0][1][:, 0], untouched.slots[0][:, 0])
    assert torch.equal(made[0][1][2, 1, :, 13:], untouched.slots[0][2, 1, :, 13:])
    assert not torch.equal(made[0][1][2, 1, :, 12], untouched.slots[0][2, 1, :, 12])


@pytest.mark.parametrize("width", [8, 33, 300])
def test_rms_norm(width: int, dtype: torch.dtype) -> None:
    draw, made = Drawing(4), []
    x, factor = draw(5, width, dtype=dtype), draw(width)
    for module in (rows_kernels, rows):
        made.append(poison(5, width, dtype=dtype))
        module.rms_norm(x, factor, 1e-6, made[-1])
    assert_near(made[0], made[1], dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated(activation: str, dtype: torch.dtype) -> None:
    y, made = Drawing(5)(3, 2 * 1100, dtype=dtype), []
    for module in (rows_kernels, rows):
        made.append(poison(3, 1100, dtype=dtype))
        module.glu(y, made[-1], activation)
    assert_near(made[0], made[1], dtype)


def test_what_cannot_be() -> None:
    memory = Memory(Drawing(), 1, 8, torch.float32)
    work = Work([shape(1)], 1, 1, DEVICE)
    with pytest.raises(ValueError, match="2 parts of pasts"):
        work.point([looking(memory.page(0, 1), memory.page(1, 1))])
    for place in (Where(16, 32, 8, 8, 2, 1), Where(24, 32, 8, 8, 8, 1)):
        with pytest.raises(ValueError, match="16 bytes"):
            aligned(place)
    assert aligned(Where(16, 32, 64, 16, 8, 1)).tokens == 1
    k, v = memory.slots[0][0, :, None], memory.pages[0][0, :, None]
    with pytest.raises(ValueError, match=r"560, 560.* 40, 40"):
        where(KV(k, v))
