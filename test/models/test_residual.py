"""Residual streams by kernels are those of plain torch, whatever the branches are."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_near, rounding
from torch import Tensor, nn

from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.config import LlamaConfig
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.residual import FusedStream, ResidualStream, computing, residual_stream
from vla_accel_ros.models.openvla_oft.stack import hidden_states

WIDTH, EPS = 12, 1e-3


def walked(stream: ResidualStream, batch: int, biased: bool, gated: bool) -> list[Tensor]:
    """All that a stream with every kind of branch gives."""
    torch.manual_seed(1)
    first, second, third = (nn.Linear(size, WIDTH, bias=biased) for size in (WIDTH, WIDTH, 20))
    up = nn.Linear(WIDTH, 20)
    weight, bias, scale, shift, gate = (torch.randn(batch, WIDTH) for _ in range(5))
    rows = [stream.norm(weight[0], bias[0], EPS)]
    stream.add(rows[-1], first, gate if gated else None)
    rows.append(stream.modulated(scale, shift, EPS))
    stream.mlp(rows[-1], up, third, gate if gated else None)
    rows.append(stream.norm(None, None, EPS))
    for linear in (second, first):  # with no norm between them
        stream.add(rows[-1], linear)
    stream.rescale(scale[0], shift[0])
    rows.append(stream.rms_norm(weight[0], EPS))
    stream.add(rows[-1], second, gate[:1])
    rows.append(stream.rms_norm(weight[0], EPS))
    stream.keep(slice(1, 3))
    stream.add(rows[-1][:, :2], first)
    return [*rows, stream.end(), stream.norm(None, bias[0], EPS)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "without biases"])
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "free"])
def test_fused_stream_is_the_plain_one(batch: int, biased: bool, gated: bool) -> None:
    x = torch.randn(batch, 5, WIDTH)
    before = x.clone()
    with torch.no_grad():
        plain = walked(residual_stream(x), batch, biased, gated)
        with computing(Ops()):
            stream = residual_stream(x)
            fused = walked(stream, batch, biased, gated)
    assert isinstance(stream, FusedStream) and torch.equal(x, before)
    for ours, expected in zip(fused, plain, strict=True):
        assert float((ours - expected).abs().max()) <= rounding(expected)


def test_where_gradients_are_wanted_plain_torch_computes_them() -> None:
    x = torch.randn(1, 5, WIDTH, requires_grad=True)
    with computing(Ops()):
        stream = residual_stream(x)
        stream.add(stream.norm(None, None, EPS), nn.Linear(WIDTH, WIDTH))
    stream.end().sum().backward()
    assert not isinstance(stream, FusedStream) and x.grad is not None


@pytest.mark.parametrize("ops", [None, Ops()], ids=["torch", "kernels"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("read", [slice(None), slice(-5, -2)], ids=str)
def test_rows_that_are_read_are_llamas(ops: Ops | None, kv_heads: int, read: slice) -> None:
    torch.manual_seed(3)
    stack = Llama(LlamaConfig(24, 3, 40, 4, kv_heads, 6), vocab=10)
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.5)
    x = torch.randn(2, 9, 24)
    with torch.no_grad():
        expected, _, _ = stack(x, torch.arange(9)[None].expand(2, -1))
        with computing(ops):
            ours = hidden_states(stack, x, read)
    assert_near(ours, expected[:, read])
