"""The stack on a residual stream is Llama's, of which nothing is masked."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_near

from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.config import LlamaConfig
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.residual import computing
from vla_accel_ros.models.openvla_oft.stack import hidden_states


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
