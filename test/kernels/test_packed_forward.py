"""A whole packed forward by the Triton kernels, launch by launch, is the plain one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import make_config, make_model
from drawing import DEVICE, Drawing
from openvla_builders import make_openvla, make_openvla_config

from vla_accel_ros.engine.kv.pages import PagePool
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.packed_stage import Kernels
from vla_accel_ros.kernels.triton import packed_attention, rows
from vla_accel_ros.models.layers.packed import Segment, forward


@pytest.mark.parametrize("family", ["gemma", "llama"])
@torch.inference_mode()
def test_a_prefill_a_rider_and_an_answer_in_pages(family: str) -> None:
    model: Any
    stack: Any
    if family == "llama":
        model = make_openvla(make_openvla_config()).to(DEVICE)
        stack = model.language_model.model
    else:
        model = make_model(make_config("pi05")).to(DEVICE)
        stack = model.language_model
    sizes, draw, made = model.config.prefix, Drawing(), []
    keys = [draw(3, sizes.depth, sizes.kv_heads, 40, sizes.head_dim) for _ in range(2)]
    x = [draw(1, count, sizes.width) for count in (9, 1, 1)]
    fused = PackedForward(stack, sizes, 64, Kernels(packed_attention, rows), capture=False)
    for run in (fused, lambda segments: forward(stack, segments)):
        pool = KVPool(sizes, 3, 40, DEVICE, torch.float32)
        pages = PagePool(sizes, 4, 3, DEVICE, torch.float32)
        pool.k.copy_(keys[0])
        pool.v.copy_(keys[1])
        tail = pages.begin(5)
        for _ in range(4):
            tail.grow()
        pages.k.copy_(keys[0][:1, :, :, :3].expand_as(pages.k))
        pages.v.copy_(keys[1][:1, :, :, :3].expand_as(pages.v))
        parts = tail.parts
        hidden = run(
            [
                Segment(x[0], causal=True, out=pool.span(0, 0, 9)),
                Segment(x[1], (pool.span(1, 0, 33),), out=pool.span(1, 33, 34)),
                Segment(x[2], (pool.span(2, 0, 40), *parts), out=tail.grow()),
            ]
        )
        made.append([rows.clone() for rows in (*hidden, pool.k, pool.v, pages.k, pages.v)])
    for got, want in zip(*made, strict=True):
        torch.testing.assert_close(got, want, atol=3e-5, rtol=1e-4)
