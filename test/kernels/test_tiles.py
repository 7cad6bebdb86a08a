"""The image encoder's products in kernels/cuda compile without a device; on one of sm_90 they are what their
references are, each time alike, and Encode is as near to float32 with them as with cuBLAS."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
import torch
from builders import make_config, make_model
from drawing import DEVICE, Drawing, assert_near, poison

from vla_accel_ros.engine.stages.prefill.encode import Encode
from vla_accel_ros.kernels.candidates import ENCODER
from vla_accel_ros.kernels.cuda import compiling, tiles
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import TritonOps
from vla_accel_ros.kernels.reference import norm
from vla_accel_ros.kernels.shapes import Config, Shape
from vla_accel_ros.kernels.tuning import Table, load_table, read_table
from vla_accel_ros.models.config import PI0
from vla_accel_ros.models.processing.conventions import OPENPI, to_unit
from vla_accel_ros.tools.tune import pieces, wide_pieces

BF16 = torch.bfloat16
KERNELS, PROCESSORS = sorted(tiles.FINISHES), 132
SHAPES = [(1, 8, 8), (77, 264, 192), (300, 1000, 712), (520, 136, 1160)]


def candidates() -> list[tuple[str, Config]]:
    return [(kernel, config) for kernel in KERNELS for config in ENCODER[kernel]]


def test_candidates_compile_without_a_device() -> None:
    assert all(tiles.fits(config) for _, config in candidates())
    for kernel, config in candidates()[::3]:
        assert compiling.compiled("tiles", tiles.macros(kernel, config), "sm_90a")[:4] == b"\x7fELF"


def test_without_a_device_of_its_kind_nothing_is_taken() -> None:
    a, weight, bias = (
        torch.zeros(256, 1152, dtype=BF16),
        torch.zeros(1152, 1152, dtype=BF16),
        torch.zeros(1152),
    )
    assert not any(tiles.takes(a, weight, bias.to(BF16), a, config=config) for _, config in candidates())


def test_entries_of_the_packaged_table_are_for_products_whose_blocks_run_at_once() -> None:
    text = (resources.files("vla_accel_ros.kernels") / "tuning" / "sm_90.json").read_text()
    table, sizes = read_table(text, "sm_90.json", Gpu(PROCESSORS, 90)), PI0.vision
    width, mlp = sizes.width, sizes.mlp
    for kernel, columns, inner in (
        ("bias_product", 3 * width, width),
        ("add_product", width, width),
        ("gelu_product", mlp, width),
        ("add_product", width, mlp),
    ):
        for views in range(1, 6):
            rows = views * sizes.tokens
            configs = table.pick_hopper(Shape(kernel, rows, columns, inner, "bfloat16"))
            if not configs:  # cuBLAS, which is faster for some of three views
                assert views >= 3
            else:
                assert tiles.fits(configs[0])
                assert (tiles.blocks(rows, columns, configs[0]) <= PROCESSORS) == (views <= 3)


def twice(run: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What it makes, which is the same both times."""
    first = run()
    assert torch.equal(first, run())
    return first


def check(kernel: str, config: Config, rows: int, columns: int, inner: int) -> None:
    draw, adds = Drawing(3), kernel == "add_product"
    a, weight = draw(rows, inner, dtype=BF16), draw(columns, inner, dtype=BF16, spread=inner**-0.5)
    bias, before = draw(columns, dtype=BF16), draw(rows, columns, dtype=BF16)
    if not tiles.takes(a, weight, bias, before, config=config):
        assert inner < 64 * config.split
        return

    def run(product: Callable[..., Any], **named: Any) -> torch.Tensor:
        out = before.clone() if adds else poison(rows, columns, dtype=BF16)
        more = (out, poison(rows, columns, dtype=BF16)) if adds else (out,)
        assert product(a, weight, bias, *more, **named) in (None, (None, None))
        return out

    ours = twice(lambda: run(getattr(tiles, kernel), config=config))
    assert_near(ours, run(getattr(norm, kernel)), BF16)


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "config"), candidates(), ids=str)
def test_products(kernel: str, config: Config) -> None:
    for shape in SHAPES:
        check(kernel, config, *shape)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
def test_products_of_more_blocks_than_processors_and_of_published_sizes(kernel: str) -> None:
    for shape in ((520, 4304, 1152), (1024, 1152, 4304)):
        for config in ENCODER[kernel][::2]:
            check(kernel, config, *shape)


@pytest.mark.gpu
@pytest.mark.parametrize("views", [1, 2, 3])
def test_products_of_the_published_encoder_are_near_their_twins(views: int) -> None:
    ops = TritonOps(DEVICE)
    for piece in wide_pieces.encoder(PI0, views, DEVICE):
        assert pieces.error(piece, ops) < pieces.NEAR, piece.name


@pytest.mark.gpu
@torch.inference_mode()
@pytest.mark.parametrize("views", [1, 2, 3])
def test_encode_of_the_published_sizes_is_as_near_to_float32_as_with_cublas(views: int) -> None:
    model = make_model(make_config(vision=dataclasses.replace(PI0.vision, depth=4))).to(DEVICE)
    frames = torch.randint(256, (views, 224, 224, 3), generator=torch.Generator().manual_seed(views)).byte()
    exact = model.encode(to_unit(frames).to(DEVICE)).flatten(0, 1)
    model.set_precision(BF16)

    def run(table: Table) -> torch.Tensor:
        encode = Encode(model, TritonOps(DEVICE, table), views, OPENPI.pixels)
        encode.upload.take(list(frames.numpy()))
        encode.body()
        return encode.tokens.clone()

    table = load_table(DEVICE)
    assert any(key.startswith("bias_product") for key in table.hopper)
    blas = run(dataclasses.replace(table, hopper={}))
    ours = twice(lambda: run(table))
    apart = [float((each.double() - exact.double()).norm() / exact.double().norm()) for each in (ours, blas)]
    assert not torch.equal(ours, blas)
    assert apart[0] < 1.1 * apart[1]
