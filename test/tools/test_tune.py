"""`vla tune` without a GPU: which products, which tiles, and what of them an engine uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import interpreted  # noqa: F401  # before triton is imported
import numpy as np
import pytest
import torch
from builders import make_config, make_model

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.lanes.partitions import CannotDivide
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
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.tune import choose
from vla_accel_ros.tools.tune.choose import LAYER
from vla_accel_ros.tools.tune.command import bound_memory
from vla_accel_ros.tools.tune.pieces import NEAR, Piece, error
from vla_accel_ros.tools.tune.row_pieces import of_few_rows, of_frame
from vla_accel_ros.tools.tune.steps import Gain, Step, Tuning


def test_tune_without_a_gpu_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["tune"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("vla tune: ") and "no CUDA device" in error and error.count("\n") == 1


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """A GPU on which tuning takes no time; for how many multiprocessors it was done."""
    processors: list[int] = []

    def steps(config: object, device: object, batches: object, tuning: Tuning, ways: object) -> Iterator[Any]:
        def step() -> Gain:
            processors.append(tuning.table.gpu.processors)
            return Gain(10.0, 8.0)

        yield "a kernel", step
        yield LAYER, step

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    present: dict[str, Any] = {"machine": {}, "versions": {}}
    monkeypatch.setattr("vla_accel_ros.tools.tune.steps.provenance", lambda: present)
    monkeypatch.setattr("vla_accel_ros.kernels.ops.ops_for", lambda device: None)
    monkeypatch.setattr("vla_accel_ros.tools.tune.choose.steps", steps)
    monkeypatch.setattr("vla_accel_ros.tools.tune.command.bound_memory", lambda device, gib: None)
    monkeypatch.setattr("vla_accel_ros.kernels.tuning.load_table", lambda device, sms: Table(Gpu(sms or 132)))
    monkeypatch.setattr(
        "vla_accel_ros.kernels.tuning.cache_file", lambda device, sms: tmp_path / f"{sms}.json"
    )
    monkeypatch.setattr("torch.cuda.stream", lambda stream: nullcontext())
    return processors


def test_tune_what_it_gained_is_said_and_stands_in_the_file(
    tmp_path: Path, tuned: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--out", str(tmp_path / "out.json")]) == 0
    output, data = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert "a layer of a denoising step: 10.00 us before, 8.00 now (-20.0%)" in output
    assert data["done"] == {name: {"before_us": 10.0, "us": 8.0} for name in ("a kernel", LAYER)}
    assert data["finished"] and read_table(json.dumps(data), "out", Gpu(132)).entries == {}


def test_tune_memory_is_bounded_on_the_gpu_in_use_by_its_number(
    tmp_path: Path, tuned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded: list[tuple[torch.device, float]] = []
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    monkeypatch.setattr(
        "vla_accel_ros.tools.tune.command.bound_memory", lambda device, gib: bounded.append((device, gib))
    )
    assert main(["tune", "--gib", "5", "--out", str(tmp_path / "out.json")]) == 0
    assert bounded == [(torch.device("cuda", 1), 5.0)]  # torch refuses "cuda" alone there


@pytest.mark.gpu
def test_tune_no_more_of_the_memory_is_allocated_than_its_bound() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved(device) / 2**30
    bound_memory(device, reserved + 1.0)
    try:
        torch.empty(1 << 29, dtype=torch.uint8, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 << 30, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@pytest.mark.parametrize("options", [["--minutes", "0"], ["--gib", "nan"]])
def test_tune_bound_that_is_none_is_refused(
    options: list[str], tuned: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *options]) == 2 and not tuned
    assert capsys.readouterr().err.endswith("; give more than 0.\n")


def test_tune_table_for_a_partition_is_kept_under_the_number_that_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tuned: list[int]
) -> None:
    part = SimpleNamespace(sms=40, streams=(None,))
    monkeypatch.setattr("vla_accel_ros.engine.lanes.partitions.of_size", lambda device, count: part)
    assert main(["tune", "--sms", "33"]) == main(["tune"]) == 0
    assert tuned == [40, 40, 132, 132]
    assert {file.name for file in tmp_path.iterdir()} == {"40.json", "None.json"}


def test_tune_gpu_that_cannot_be_divided_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tuned: list[int]
) -> None:
    def of_size(device: object, count: int) -> None:
        raise CannotDivide("this GPU driver has no cuGreenCtxCreate (one of CUDA 12.4 or newer has it)")

    monkeypatch.setattr("vla_accel_ros.engine.lanes.partitions.of_size", of_size)
    assert main(["tune", "--sms", "32"]) == 1
    assert capsys.readouterr().err.startswith("vla tune: this GPU driver has no cuGreenCtxCreate")
    assert tuned == []


class Machine:
    """Kernels whose time a test says, on a clock that they move by a second each."""

    def __init__(self, path: Path) -> None:
        self.path, self.now_s, self.ran = path, 0.0, list[str]()
        self.said = list[str]()
        self.fails: dict[str, Exception] = {}

    def tuning(self, **about: Any) -> Tuning:
        return Tuning(Table(Gpu(8)), Table(Gpu(8)), self.path, about, self.said.append, lambda: self.now_s)

    def steps(self, tuning: Tuning, names: str = "abc") -> list[tuple[str, Step]]:
        def step(name: str) -> Gain:
            self.now_s += 1.0
            tuning.table.entries[name] = Config(16, 16, 16, split=1 + len(self.ran))
            if name in self.fails:
                raise self.fails[name]
            self.ran.append(name)
            return Gain(4.0, 2.0)

        return [(name, partial(step, name)) for name in names]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "tuning" / "gpu.json")


class TestSteps:
    def test_tune_what_its_time_is_over_for_goes_on_when_it_is_called_again(self, machine: Machine) -> None:
        first = machine.tuning()
        assert first.resume() == 0 and not first.run(machine.steps(first), until_s=2.0)
        assert machine.ran == ["a", "b"]
        second = machine.tuning()
        assert second.resume() == 2 and second.run(machine.steps(second), until_s=99.0)
        assert machine.ran == ["a", "b", "c"] and second.done == dict.fromkeys("abc", Gain(4.0, 2.0))
        table = read_table(machine.path.read_text(), "file", Gpu(8))
        assert {name: config.split for name, config in table.entries.items()} == {"a": 1, "b": 2, "c": 3}

    def test_tune_what_is_killed_loses_the_kernel_that_it_was_at_alone(self, machine: Machine) -> None:
        tuning = machine.tuning()
        machine.fails["c"] = KeyboardInterrupt()  # type: ignore[assignment]  # as ctrl-C is
        with pytest.raises(KeyboardInterrupt):
            tuning.run(machine.steps(tuning), until_s=99.0)
        machine.fails.clear()
        resumed = machine.tuning()
        assert resumed.resume() == 2 and resumed.run(machine.steps(resumed), until_s=99.0)
        assert machine.ran == ["a", "b", "c"]

    def test_tune_finished_one_or_one_of_other_options_versions_or_gpus_begins_anew(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = machine.tuning(batches=[1])
        assert whole.run(machine.steps(whole), until_s=99.0) and machine.tuning(batches=[1]).resume() == 0
        partly = machine.tuning(batches=[1])
        assert not partly.run(machine.steps(partly), until_s=machine.now_s + 1.0)
        assert machine.tuning(batches=[1, 2]).resume() == 0
        assert machine.tuning(batches=[1]).resume() == 1
        present = provenance()
        for name in ("machine", "versions"):
            other = {**present, name: {**present[name], "gpu": "another"}}
            with monkeypatch.context() as changed:
                changed.setattr("vla_accel_ros.tools.tune.steps.provenance", lambda other=other: other)
                assert machine.tuning(batches=[1]).resume() == 0

    def test_tune_what_does_not_fit_into_memory_stays_as_it_was_and_is_named(self, machine: Machine) -> None:
        machine.fails["b"] = torch.OutOfMemoryError("tried to allocate 3 GiB\nand more")
        tuning = machine.tuning()
        assert tuning.run(machine.steps(tuning), until_s=99.0)
        assert machine.ran == ["a", "c"] and set(tuning.table.entries) == {"a", "c"}
        assert [line.split(maxsplit=1) for line in machine.said] == [
            ["b", "left as it was: tried to allocate 3 GiB"]
        ]

    def test_tune_file_that_is_no_table_is_named(self, machine: Machine) -> None:
        machine.path.parent.mkdir()
        machine.path.write_text("[]")
        with pytest.raises(ValueError, match=r"gpu\.json"):
            machine.tuning().resume()


@pytest.mark.parametrize("few", [(), (Config(64, 16, 64, way="cuda"),)])
def test_tune_what_is_in_use_starts_early_only_beside_candidates_that_do(
    monkeypatch: pytest.MonkeyPatch, few: tuple[Config, ...], machine: Machine
) -> None:
    """A GPU before Hopper cannot launch so."""
    tables = list[Table]()
    monkeypatch.setattr(choose, "TritonOps", lambda device, table: tables.append(table))
    monkeypatch.setattr(choose, "_launch", lambda ops, piece: None)
    monkeypatch.setattr(choose, "chain_us", lambda *given, **more: 4.0)
    monkeypatch.setattr(choose.Chooser, "_best", lambda *given: 2.0)
    monkeypatch.setattr(choose.Chooser, "_hopper", lambda *given: 3.0)
    gain = choose.Chooser(machine.tuning(), torch.device("cpu")).choose(cast(Piece, None), (), few)
    assert gain == Gain(4.0, 2.0) and [table.pdl for table in tables] == [bool(few)]


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
