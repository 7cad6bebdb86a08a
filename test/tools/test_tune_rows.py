"""`vla tune --weights w8a8 w8a8-fp8`: which products, which tiles, and what of them an engine uses."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import interpreted  # noqa: F401  # before triton is imported
import numpy as np
import pytest
import torch
from builders import make_config, make_model

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.packed_stage import kernels_for
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.kernels.block_shapes import chosen
from vla_accel_ros.kernels.candidates import ROWS, rows_candidates
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import Ops, TritonOps, gated_int8_shape, multiply_int8_shape
from vla_accel_ros.kernels.reference.int8 import place_rows
from vla_accel_ros.kernels.shapes import Config, Shape
from vla_accel_ros.kernels.triton import int8 as triton_int8
from vla_accel_ros.kernels.tuning import Table, read_table
from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.layers.quantized import FP8, W8A8, quantized
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.tune import choose
from vla_accel_ros.tools.tune.pieces import NEAR, Piece, error
from vla_accel_ros.tools.tune.row_pieces import of_few_rows, of_frame
from vla_accel_ros.tools.tune.steps import Gain, Tuning

CPU = torch.device("cpu")
TOY = make_config(
    vision=VisionConfig(width=40, depth=2, mlp=88, heads=4, image_size=28, patch=14),
    image_names=("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"),
)
"""Whose products are all of different sizes."""
kinds = pytest.mark.parametrize("kind", [W8A8, FP8])
DTYPE = {W8A8: "int8", FP8: "float8_e4m3fn"}


@kinds
def test_every_product_of_an_engine_has_an_entry_and_none_has_two(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = list[Shape]()

    def enter(tuning: Tuning, piece: Piece, candidates: Any, few: Any, device: Any) -> None:
        shape = choose.shape_of(piece)
        assert candidates == rows_candidates(shape.rows)
        found.append(shape)

    monkeypatch.setattr(choose, "_choose", enter)
    for _, step in choose.rows_steps(
        TOY, CPU, kind, (1,), Tuning(Table(Gpu(8)), Table(Gpu(8)), tmp_path, {})
    ):
        step()
    keys = [shape.key for shape in found]
    assert len(set(keys)) == len(keys) and {shape.dtype for shape in found} == {DTYPE[kind]}
    assert launched_by_stages(kind) <= set(keys)


def launched_by_stages(kind: str) -> set[str]:
    """The entries that a frame and a chunk ask for."""
    launched = set[str]()

    class Watched(Ops):
        @staticmethod
        def multiply_int8(a: Any, weight: Any, *more: Any) -> None:
            launched.add(multiply_int8_shape(a, weight).key)
            Ops.multiply_int8(a, weight, *more)

        @staticmethod
        def gated_int8(a: Any, weight: Any, *more: Any) -> None:
            launched.add(gated_int8_shape(a, weight).key)
            Ops.gated_int8(a, weight, *more)

    pool = KVPool(TOY.prefix, 2, TOY.max_tokens, CPU, torch.float32)
    precision = "w8a8" if kind == W8A8 else "w8a8-fp8"
    stages = Stages(make_model(TOY, varied=False), pool, precision=precision, ops=Watched)
    for views in (1, 2, 3):
        images = np.zeros((views, 28, 28, 3), np.uint8)
        (length,) = stages.observe([images], [torch.zeros(20, dtype=torch.int64)], [1])
    noise, state = torch.zeros(1, TOY.horizon, TOY.action_dim), torch.zeros(1, TOY.state_dim)
    stages.act(noise, state, [1], [length], 2)
    assert len(launched) > 10
    return launched


def test_few_rows_have_small_tiles_and_many_rows_large_ones() -> None:
    for rows in (1, 20, 50, 64, 256, 800):
        found = rows_candidates(rows)
        assert found and all(one.block_m <= max(16, 2 * rows) for one in found)
        assert rows <= 64 or all(one.block_m >= 64 for one in found)
    assert {one.block_m for one in rows_candidates(50)} == {16, 32, 64}
    assert all(one.block_k >= 32 for one in ROWS), "less than the matrix units take"


def test_engines_launch_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages, and forwards of text, whose table is that of the device."""
    taken = list[Config]()
    for name in ("multiply", "gated"):
        monkeypatch.setattr(triton_int8, name, lambda *given, config: taken.append(config))
    one, other, a = Config(64, 32, 64), Config(64, 64, 64), place_rows(50, 32, CPU)
    weight, in_fp8 = (quantized(torch.ones(64, 32), kind) for kind in (W8A8, FP8))
    table = Table(Gpu(8), {"int8_product/64/64/32/int8": one, "int8_gated/64/32/32/int8": other})
    for module in ("engine.stages.packed_stage.load_table", "kernels.tuning.load_table"):
        monkeypatch.setattr(f"vla_accel_ros.{module}", lambda device: table)
    both: tuple[Any, ...] = TritonOps(CPU, table), kernels_for(torch.device("cuda")).int8
    for ops in both:
        taken.clear()
        ops.multiply_int8(a, weight, None)
        ops.gated_int8(a, weight, None)
        ops.multiply_int8(place_rows(50, 32, CPU, in_fp8.dtype), in_fp8, None)
        assert taken == [one, other, chosen(Shape("int8_product", 50, 64, 32, DTYPE[FP8]), Gpu(8))]


@kinds
def test_a_product_that_is_timed_is_compared_with_its_reference(kind: str) -> None:
    for product in (*of_frame(TOY, 1), *of_few_rows(TOY, (1,))):
        piece = product.piece(kind, CPU)
        assert error(piece, Ops()) < NEAR
        wrong = SimpleNamespace(**{piece.kernel: lambda *given: None})
        assert not error(piece, cast(Ops, wrong)) <= NEAR


def test_weights_alone_leave_the_rest_of_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = Table(Gpu(132), {"project/64/16/32/bfloat16": Config(16, 16, 16)}, pdl=True)

    def rows_steps(config: Any, device: Any, kind: str, batches: Any, tuning: Tuning) -> Any:
        def step() -> Gain:
            tuning.table.entries[f"int8_product/16/16/32/{kind}"] = Config(16, 16, 32)
            return Gain(2.0, 1.0)

        yield kind, step

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("vla_accel_ros.kernels.ops.ops_for", lambda device: None)
    monkeypatch.setattr("vla_accel_ros.tools.tune.command.bound_memory", lambda device, gib: None)
    monkeypatch.setattr("vla_accel_ros.kernels.tuning.load_table", lambda device, sms: used)
    monkeypatch.setattr("vla_accel_ros.tools.tune.choose.rows_steps", rows_steps)
    monkeypatch.setattr("vla_accel_ros.tools.tune.steps.provenance", lambda: {"machine": {}, "versions": {}})
    monkeypatch.setattr("torch.cuda.stream", lambda stream: nullcontext())
    options = ["tune", "--only-weights", "--out", str(tmp_path / "out.json")]
    assert main([*options, "--weights", "w8a8", "w8a8-fp8"]) == 0
    table = read_table((tmp_path / "out.json").read_text(), "out", Gpu(132))
    made = [f"int8_product/16/16/32/{kind}" for kind in (W8A8, FP8)]
    assert sorted(table.entries) == sorted([*made, *used.entries]) and table.pdl
    capsys.readouterr()
    assert main(options) == 2
    assert "--only-weights times the products of --weights alone" in capsys.readouterr().err
