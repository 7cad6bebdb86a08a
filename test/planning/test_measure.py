"""The parts of the micro-benchmarks, on a CPU with small shapes: what they say there means nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attentions import attention
from torch.utils._python_dispatch import TorchDispatchMode

from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.models.layers.llama import RMSNorm
from vla_accel_ros.models.smolvla.stack import rotary_tables, rotate
from vla_accel_ros.planning import cost, micro
from vla_accel_ros.planning import measure as measuring
from vla_accel_ros.planning.device import Shape, load
from vla_accel_ros.planning.measure import _rate, attentions, measure, shapes, to_yaml
from vla_accel_ros.planning.micro import (
    PLAIN_LAUNCHES,
    attention_us,
    bandwidth_gb_s,
    pass_us,
    plain_us,
    product_us,
    products,
    us_of,
)
from vla_accel_ros.planning.operations import GATED, PACKED, ROWS, SDPA, Op
from vla_accel_ros.planning.rows import own_rate, rows_us, tile
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.trace import trace

CPU = torch.device("cpu")


def test_every_product_of_the_stages_is_measured_once() -> None:
    wanted = shapes([MODELS["pi0"], MODELS["pi05"]], (1, 2), ("bf16", "int8"))
    keys = [(shape.m, shape.n, shape.k, shape.dtype) for shape in wanted]
    assert len(keys) == len(set(keys))
    assert (544, 32768, 2048, "bf16") in keys and (288, 2048, 16384, "int8") in keys


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp32"])
def test_a_product_takes_some_time(dtype: str) -> None:
    us = product_us(32, 64, 48, dtype, CPU, chain=2)
    assert us is not None and us > 0


class Products(TorchDispatchMode):
    """Counts products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__.startswith(("mm", "_int_mm"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_a_time_is_of_one_launch_of_the_chain(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []

    def timed(run: object, launches: int, device: object) -> float:
        said.append(launches)
        return 1.0

    monkeypatch.setattr(micro, "us_of", timed)
    for chain in (2, 5, 24):
        product_us(32, 64, 48, dtype, CPU, chain)
        with Products() as seen:
            products(32, 64, 48, dtype, CPU, 2, chain // 2)()
        assert said[-1] == seen.count == chain // 2 * 2


def test_a_dtype_that_is_not_multiplied_here_has_no_time() -> None:
    assert product_us(32, 64, 48, "fp4", CPU, chain=2) is None


def test_the_attentions_of_openvla_and_smolvla_are_measured_as_they_are_launched() -> None:
    wanted = attentions([MODELS["openvla"], MODELS["smolvla"]], (1, 2))
    keys = {(op.rows, op.columns, op.inner, op.by) for op in wanted}
    assert {(16 * 261, 64, 261, SDPA), (32 * 288, 128, 288, PACKED), (24 * 1024, 64, 1024, SDPA)} <= keys
    assert not any(op.rows == op.heads for op in wanted)  # one token is another launch


class Attentions(TorchDispatchMode):
    """Rows of the attentions, heads and images together."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in func.__name__:
            self.rows.append(args[0].shape[:-1].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("by", [SDPA, PACKED])
def test_an_attention_is_computed_for_all_its_rows(by: str) -> None:
    op = attention("a", 1, 12, 12, 4, 4, 8, batch=2 if by == SDPA else 1, by=by)
    with Attentions() as seen:
        assert attention_us(op, CPU, chain=2) > 0
    assert set(seen.rows) == ({op.rows} if by == SDPA else set())


def test_what_cannot_be_measured_is_said_and_nothing_else_is_lost() -> None:
    said: list[str] = []
    odd = attention("a", 1, 12, 12, 4, 4, 8, by=PACKED)
    wrong = replace(odd, columns=-1)
    made = measure(
        load("h200"), CPU, [Shape(8, 8, 8, "fp4", 0.0)], say=said.append, large=16, megabytes=1,
        read=[wrong, odd],
    )  # fmt: skip
    assert [shape.dtype for shape in made.gemm] == [PACKED]
    assert len(said) == 2 and "packed" in said[0] and "fp4" in said[1]


def test_rows_in_8_bits_are_explained_by_the_numbers_that_are_made_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h200 = load("h200")
    kept = {name: number for name, number in h200.numbers.items() if "rows" not in name}
    given = {(544, 32768): 300.0, (51, 2560): 9.0}
    timed: list[Op] = []

    def us(op: Op, device: torch.device, config: Config) -> float:
        assert config == tile(op, h200)
        timed.append(op)
        return given[op.rows, op.columns]

    monkeypatch.setattr(measuring, "rows_product_us", us)
    made = measure(replace(h200, numbers=kept), CPU, [], large=16, megabytes=1, rows=["int8"])
    assert len(timed) == 2 and [op.by for op in timed] == [GATED, ROWS]
    for op in timed:
        assert own_rate(op, made) == "int8_rows_tflops"
        assert made.value("start_us") + rows_us(op, made) == pytest.approx(
            given[op.rows, op.columns], rel=1e-3
        )
    assert made.numbers.keys() - kept.keys() == {"int8_rows_tflops", "rows_chunk_us"}


def test_a_product_of_rows_in_8_bits_takes_some_time_or_says_why_not() -> None:
    said: list[str] = []
    small = ((12, 64, 32), (3, 32, 32))
    made = measure(
        load("h200"), CPU, [], large=16, megabytes=1, rows=["int8", "int4"], rows_of=small, say=said.append
    )
    assert made.numbers["int8_rows_tflops"].words == "a product of (12, 64, 32) in engines' tiles"
    assert made.value("rows_chunk_us") > 0 and len(said) == 1 and "int4 rows were not measured" in said[0]


def test_attention_computes_no_less_when_the_rate_of_tiles_is_another() -> None:
    made = measure(load("h200"), CPU, [Shape(32, 64, 48, "bf16", 0.0)], large=16, megabytes=1)
    before, now = (
        device.value("bf16_tflops") * device.value("attention_share") for device in (load("h200"), made)
    )
    assert now == pytest.approx(before, rel=1e-3)


def test_launches_of_plain_torch_are_those_of_a_norm_and_a_rotation() -> None:
    with torch.device("meta"):
        norm = RMSNorm(48, 1e-5).to(torch.bfloat16)
        heads = torch.empty(1, 5, 3, 16, dtype=torch.bfloat16).transpose(1, 2)
        tables, x = rotary_tables(torch.arange(5)[None], 16), torch.empty(1, 5, 48, dtype=torch.bfloat16)
    calls = trace(norm, lambda: (norm(x), rotate(heads, tables)))
    assert sum(call.launches for call in calls) == PLAIN_LAUNCHES


def test_a_chain_is_timed_by_launch() -> None:
    calls = []
    assert us_of(lambda: calls.append(1), 10, CPU, repeats=3) < 1e5
    assert len(calls) == 3
    assert bandwidth_gb_s(CPU, 1) > 0 and pass_us(CPU, 1e6, 8, 16) > 0 and plain_us(CPU, 1) > 0


def test_the_rate_is_found_from_which_times_were_made() -> None:
    rate, start = 5e14, 3.0
    made = [
        Shape(m, n, 2048, "bf16", start + cost.waves_us(m, n, 2048, 132, rate))
        for m in (256, 512) for n in (2048, 8192, 32768)
    ]  # fmt: skip
    assert _rate(made, 132, start) == pytest.approx(rate, rel=0.01)


def test_what_was_measured_is_written_and_read_again(tmp_path: Path) -> None:
    base = load("orin-agx-64")
    made = measure(base, CPU, [Shape(32, 64, 48, "bf16", 0.0)], large=32, megabytes=1)
    assert made.numbers["bandwidth_gb_s"].source == "measured" and len(made.gemm) == 1
    assert made.numbers["context_gb"] == base.numbers["context_gb"]
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(made, "My GPU", "a note"))
    again = load(str(file))
    assert again.gemm == made.gemm and again.title == "My GPU"
    for name, number in made.numbers.items():
        assert again.value(name) == pytest.approx(number.value, rel=1e-4)


def test_no_shape_is_begun_when_the_time_is_over() -> None:
    said: list[str] = []
    made = measure(
        load("h200"), CPU, [Shape(8, 8, 8, "bf16", 0.0)] * 3, seconds=-1.0, say=said.append, megabytes=1
    )
    assert made.gemm == () and said == ["3 of 3 shapes were left out after -1 s"]


@pytest.mark.gpu
def test_a_gpu_is_measured_near_its_file() -> None:
    device = torch.device("cuda")
    us = product_us(544, 32768, 2048, "bf16", device)
    assert us is not None and us < 1e5
    assert 0 < pass_us(device, 1e6) < 1e3, "all of its time, as bytes take none at that bandwidth"
