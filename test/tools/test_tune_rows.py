"""`vla tune --weights w8a8`: which products, which tiles, and what of them an engine uses."""

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
from vla_accel_ros.kernels.candidates import ROWS, rows_candidates
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import Ops, TritonOps, gated_int8_shape, multiply_int8_shape
from vla_accel_ros.kernels.reference.int8 import place_rows
from vla_accel_ros.kernels.shapes import Config, Shape
from vla_accel_ros.kernels.triton import int8 as triton_int8
from vla_accel_ros.kernels.tuning import Table, read_table
from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.layers.quantized import W8A8, quantized
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


def test_tune_rows_every_product_of_an_engine_has_an_entry_and_none_has_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shapes = list[Shape]()

    def enter(chooser: choose.Chooser, piece: Piece, candidates: Any) -> None:
        shape = choose.shape_of(piece)
        assert candidates == rows_candidates(shape.rows)
        shapes.append(shape)

    monkeypatch.setattr(choose.Chooser, "choose", enter)
    tuning = Tuning(Table(Gpu(8)), Table(Gpu(8)), tmp_path, {})
    for _, step in choose.rows_steps(TOY, CPU, (1,), tuning):
        step()
    keys = [shape.key for shape in shapes]
    assert len(set(keys)) == len(keys) and {shape.dtype for shape in shapes} == {"int8"}
    assert launched_by_stages() <= set(keys)


def launched_by_stages() -> set[str]:
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
    stages = Stages(make_model(TOY, varied=False), pool, precision=W8A8, ops=Watched)
    for views in (1, 2, 3):
        images = np.zeros((views, 28, 28, 3), np.uint8)
        (length,) = stages.observe([images], [torch.zeros(20, dtype=torch.int64)], [1])
    noise, state = torch.zeros(1, TOY.horizon, TOY.action_dim), torch.zeros(1, TOY.state_dim)
    stages.act(noise, state, [1], [length], 2)
    assert len(launched) > 10
    return launched


def test_tune_rows_few_rows_have_small_tiles_and_many_rows_large_ones() -> None:
    for rows in (1, 20, 50, 64, 256, 800):
        candidates = rows_candidates(rows)
        assert candidates and all(candidate.block_m <= max(16, 2 * rows) for candidate in candidates)
        assert rows <= 64 or all(candidate.block_m >= 64 for candidate in candidates)
    assert {candidate.block_m for candidate in rows_candidates(50)} == {16, 32, 64}
    assert all(candidate.block_k >= 32 for candidate in ROWS), "less than the matrix units take"


def test_tune_rows_engines_launch_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages, and forwards of text, whose table is that of the device."""
    launched = list[Config]()
    for name in ("multiply", "gated"):
        monkeypatch.setattr(triton_int8, name, lambda *given, config: launched.append(config))
    tile, gated, a = Config(64, 32, 64), Config(64, 64, 64), place_rows(50, 32, CPU)
    weight = quantized(torch.ones(64, 32), W8A8)
    table = Table(Gpu(8), {"int8_product/64/64/32/int8": tile, "int8_gated/64/32/32/int8": gated})
    for module in ("engine.stages.packed_stage.load_table", "kernels.tuning.load_table"):
        monkeypatch.setattr(f"vla_accel_ros.{module}", lambda device: table)
    engines: list[Any] = [TritonOps(CPU, table), kernels_for(torch.device("cuda")).int8]
    for ops in engines:
        launched.clear()
        ops.multiply_int8(a, weight, None)
        ops.gated_int8(a, weight, None)
        ops.multiply_int8(place_rows(100, 32, CPU), weight, None)
        assert launched == [tile, gated, table.pick(Shape("int8_product", 100, 64, 32, "int8"))]


def test_tune_rows_product_that_is_timed_is_compared_with_its_reference() -> None:
    for product in (*of_frame(TOY, 1), *of_few_rows(TOY, (1,))):
        piece = product.piece(CPU)
        assert error(piece, Ops()) < NEAR
        broken = SimpleNamespace(**{piece.kernel: lambda *given: None})
        assert not error(piece, cast(Ops, broken)) <= NEAR


def test_tune_rows_weights_alone_leave_the_rest_of_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = Table(Gpu(132), {"project/64/16/32/bfloat16": Config(16, 16, 16)}, pdl=True)

    entry = "int8_product/16/16/32/int8"

    def rows_steps(config: Any, device: Any, batches: Any, tuning: Tuning) -> Any:
        def step() -> Gain:
            tuning.table.entries[entry] = Config(16, 16, 32)
            return Gain(2.0, 1.0)

        yield "a product", step

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("vla_accel_ros.kernels.ops.ops_for", lambda device: None)
    monkeypatch.setattr("vla_accel_ros.tools.tune.command.bound_memory", lambda device, gib: None)
    monkeypatch.setattr("vla_accel_ros.kernels.tuning.load_table", lambda device, sms: used)
    monkeypatch.setattr("vla_accel_ros.tools.tune.choose.rows_steps", rows_steps)
    monkeypatch.setattr("vla_accel_ros.tools.tune.steps.provenance", lambda: {"machine": {}, "versions": {}})
    monkeypatch.setattr("torch.cuda.stream", lambda stream: nullcontext())
    options = ["tune", "--only-weights", "--out", str(tmp_path / "out.json")]
    assert main([*options, "--weights", "w8a8"]) == 0
    table = read_table((tmp_path / "out.json").read_text(), "out", Gpu(132))
    assert table.entries.keys() == {entry, *used.entries} and table.pdl
    capsys.readouterr()
    assert main(options) == 2
    assert "--only-weights times the products of --weights alone" in capsys.readouterr().err
