"""The parts of the micro-benchmarks, on a CPU with small shapes: what they say there means nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vla_accel_ros.planning import cost
from vla_accel_ros.planning import measure as measuring
from vla_accel_ros.planning.device import Shape, load
from vla_accel_ros.planning.measure import (
    _rate,
    bandwidth_gb_s,
    measure,
    pass_us,
    product_us,
    products,
    shapes,
    to_yaml,
    us_of,
)
from vla_accel_ros.planning.sizes import MODELS

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

    monkeypatch.setattr(measuring, "us_of", timed)
    for chain in (2, 5, 24):
        product_us(32, 64, 48, dtype, CPU, chain)
        with Products() as seen:
            products(32, 64, 48, dtype, CPU, 2, chain // 2)()
        assert said[-1] == seen.count == chain // 2 * 2


def test_a_dtype_that_is_not_multiplied_here_has_no_time() -> None:
    assert product_us(32, 64, 48, "fp4", CPU, chain=2) is None


def test_a_chain_is_timed_by_launch() -> None:
    calls = []
    assert us_of(lambda: calls.append(1), 10, CPU, repeats=3) < 1e5
    assert len(calls) == 3
    assert bandwidth_gb_s(CPU, 1) > 0 and pass_us(CPU) > 0


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
    assert pass_us(device) < 20.0
