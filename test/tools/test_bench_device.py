"""`vla bench device`: every kernel against its reference, stages beside plans, one file to send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.tools.bench import kernels
from vla_accel_ros.tools.bench.device import NO_GPU
from vla_accel_ros.tools.bench.kernels import FORWARD, KERNELS, CheckedOps, checked
from vla_accel_ros.tools.bench.tiny import tiny_pi
from vla_accel_ros.tools.cli import main

CPU = torch.device("cpu")


def test_bench_device_small_tries_all_of_it_and_writes_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "device", "--small", "--views", "2", "--runs", "1", "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "device_small.json").read_text())
    assert {"machine", "versions", "date"} <= document.keys()
    assert {kernel["kernel"] for kernel in document["kernels"]} == {*KERNELS, FORWARD}
    assert all(kernel["good"] and kernel["launches"] > 0 for kernel in document["kernels"])
    assert document["not_launched"] == [] and document["left_out"] == {}
    assert {row["model"] for row in document["rows"]} == {"pi0", "pi05", "openvla", "smolvla"}
    assert {"encode", "prefill", "denoise", "whole"} <= {row["stage"] for row in document["rows"]}
    output = capsys.readouterr().out
    assert "kernels are near their references" in output and "device_small.json" in output
    assert str(Path.cwd()) not in json.dumps(document)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_device_without_a_gpu_it_says_so_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "device"]) == 1
    assert NO_GPU in capsys.readouterr().err


def test_bench_device_views_that_no_model_has_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "device", "--small", "--views", "4"]) == 2
    assert "--views is [4]; give numbers from 1 to 3" in capsys.readouterr().err


class Broken(Ops):
    """One kernel is wrong, and one leaves a number that is none."""

    @staticmethod
    def glu(gate_up: torch.Tensor, out: torch.Tensor, *activation: str) -> None:
        Ops.glu(gate_up, out, *activation)
        out[..., -1] *= 2

    @staticmethod
    def read_out(*given: Any) -> None:
        Ops.read_out(*given)
        given[3].view(-1)[0] = float("nan")


def test_bench_device_kernel_that_is_wrong_is_named_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ops_for", lambda *_: Broken())
    monkeypatch.setattr(kernels, "PRECISIONS", ("exact",))
    results = {result.kernel: result for result in checked([tiny_pi("pi0")], CPU, torch.float32)}
    assert {name for name, result in results.items() if not result.good} == {"glu", "read_out"}
    assert results["read_out"].error == float("inf") and results["glu"].where == "pi0, exact"


def test_bench_device_kernel_that_cannot_be_launched_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Ops):
        @staticmethod
        def gated_up(*given: object) -> None:
            raise RuntimeError("out of resource: shared memory\nRequired: 200000")

    monkeypatch.setattr(kernels, "ops_for", lambda *_: Failing())
    monkeypatch.setattr(kernels, "PRECISIONS", ("exact",))
    bad = [result for result in checked([tiny_pi("pi05")], CPU, torch.float32) if not result.good]
    assert [result.wrong for result in bad] == ["RuntimeError: out of resource: shared memory"]


def test_bench_device_what_is_compared_is_what_a_launch_left_in_its_arguments() -> None:
    launches: list[tuple[str, float, float]] = []
    ops, out = CheckedOps(Ops(), launches), torch.zeros(1, 3, 4)
    ops.glu(torch.randn(1, 3, 8), out)
    assert launches[0][:2] == ("glu", 0.0) and out.norm() > 0
