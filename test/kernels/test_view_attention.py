"""Attention of the image encoder in kernels/cuda: it compiles without a device, and is its reference on
sm_90.
"""

from __future__ import annotations

import pytest
import torch
from drawing import Drawing, assert_near

from vla_accel_ros.kernels.cuda import compiling, view_attention
from vla_accel_ros.kernels.reference import attention

BF16 = torch.bfloat16


def test_it_compiles_without_a_device() -> None:
    assert compiling.compiled("view_attention", {}, "sm_90a")[:4] == b"\x7fELF"


def test_without_a_device_of_its_kind_nothing_is_taken() -> None:
    assert not view_attention.takes(torch.zeros(256, 3 * 1152, dtype=BF16), 16, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("views", [1, 2, 3, 7])
def test_attend_views(views: int) -> None:
    qkv = Drawing(views)(views * 256, 3 * 1152, dtype=BF16)
    assert view_attention.takes(qkv, 16, views)
    assert not view_attention.takes(qkv, 8, views)  # heads of 144
    assert not view_attention.takes(qkv[:, 8:], 16, views)
    ours = view_attention.attend_views(qkv, 16, views)
    assert torch.equal(ours, view_attention.attend_views(qkv, 16, views))
    assert_near(ours, attention.attend_views(qkv.float(), 16, views), BF16)
