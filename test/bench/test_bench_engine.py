"""bench/engine.py without a GPU: the roofline, the report, and what is compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_config
from engine import main, put_compiled

from full_size import compiled, roofline
from full_size.report import chart, table
from full_size.roofline import Ceilings, Op, product
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.tools.bench.subjects import Ours, plain, random_inputs, random_model, relative

CPU = torch.device("cpu")
FIGURES = {"p50_ms": 20.0, "p99_ms": 20.2, "beside": {"ours": {"p50_ms": 9.0}}}
"""Of torch.compile, and what was measured in the same process."""


def test_an_op_takes_the_longer_of_its_bytes_and_its_arithmetic() -> None:
    ceilings = Ceilings(bandwidth=1e9, arithmetic=1e12)
    assert Op("bytes", 3, 2e3, 1e3).us(ceilings) == pytest.approx(6.0)
    assert Op("flops", 1, 2e3, 5e6).us(ceilings) == pytest.approx(5.0)
    one = product("p", 1, rows=3, columns=5, inner=7)
    assert (one.bytes, one.flops) == (70, 210)


def test_weights_of_the_published_models() -> None:
    """Bytes of the matrices are those of the checkpoint."""
    names = ("qkv", "o", "gate and up", "down")
    expert = sum(
        op.bytes for op in roofline.denoise(PI0, 1, 20, steps=1) for _ in range(op.count) if op.name in names
    )
    assert expert == 2 * 18 * (1024 * 2560 + 2048 * 1024 + 3 * 1024 * 4096)
    prefix = sum(op.bytes * op.count for op in roofline.prefill(PI0, 1, 20) if op.name in names)
    assert prefix == 2 * 17 * (2048 * 2560 + 2048 * 2048 + 3 * 2048 * 16384)


@pytest.mark.parametrize(
    ("views", "expected"), [(1, (0.33, 1.56, 1.58)), (2, (0.66, 3.04, 1.61)), (3, (0.99, 4.54, 1.64))]
)
def test_the_roofline_is_the_published_one_less_what_is_not_computed(
    views: int, expected: tuple[float, ...]
) -> None:
    """That one counts the whole last prefix layer, 1/18 of prefill, and slightly lower ceilings."""
    times = roofline.stages(PI0, views)
    for stage, theirs in zip(("encode", "prefill", "denoise"), expected, strict=True):
        assert 0.90 * theirs < times[stage] <= theirs
    assert times["total"] == pytest.approx(sum(times[stage] for stage in ("encode", "prefill", "denoise")))


@pytest.mark.parametrize("config", [PI0, PI05], ids=["pi0", "pi05"])
def test_kernels_of_a_step_sum_to_the_step(config: PiConfig) -> None:
    each = roofline.kernels_us(config, 2, 20)
    layer = sum(each[name] for name in ("rotary_qkv", "attend", "project o", "gated_up", "project down"))
    step = 18 * layer + each["embed_actions"] + each["read_out"]
    assert step == pytest.approx(1e3 * roofline.stages(config, 2, steps=1)["denoise"])


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
@torch.inference_mode()
def test_both_sides_of_the_comparison_compute_the_same(kind: str) -> None:
    config = make_config(kind)
    model, inputs = random_model(config, CPU), random_inputs(config, 2, 7, CPU)
    ours = Ours(model, inputs, steps=3)
    exact = plain(model, inputs, steps=3)()
    assert relative(ours.actions, exact) < 1e-4
    for run in ours.parts().values():
        run()


def document() -> dict[str, Any]:
    def way(ms: float) -> dict[str, Any]:
        return {"p50_ms": ms, "p99_ms": ms * 1.01}

    stages = {
        name: way(ms) for name, ms in (("encode", 1.0), ("prefill", 3.5), ("denoise", 4.0), ("total", 8.5))
    }
    cases = [
        {
            "kind": kind,
            "views": views,
            "roofline_ms": roofline.stages(PI0, views),
            "ours": {**stages, "error": 3e-3, "kernels": 1460, "allocated_bytes": 0},
            "plain graph": {**way(44.0), "error": 4e-3},
            "plain eager": {**way(120.0), "error": 4e-3, "kernels": 9000},
            "compiled": FIGURES if views == 2 else {"none": "not compiled within 300 s"},
        }
        for kind in ("pi0", "pi05")
        for views in (1, 2)
    ]
    kernels = [
        {
            "kind": "pi0",
            "keys": 532,
            "batch": 1,
            "kernels": {"project": {"error": 2e-3, "us": 3.4, "roofline_us": 1.9}, "attend": {"error": 1e-3}},
        }
    ]
    return {"steps": 10, "cases": cases, "kernels": kernels, "machine": {"gpu": "a GPU"}}


def test_the_report_is_made_of_the_json_alone(tmp_path: Path) -> None:
    read_back = json.loads(json.dumps(document()))
    text = table(read_back)
    for expected in (
        "pi0, 1 view\n",
        "pi05, 2 views\n",
        "8.50",
        "none: not compiled within 300 s",
        "(in the same process: ours 9.00)",
        "2.00e-03",
    ):
        assert expected in text
    chart(read_back, tmp_path / "folder" / "engine.png")
    assert (tmp_path / "folder" / "engine.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
@torch.inference_mode()
def test_compiled_modules_are_whole_and_compute_the_same(kind: str) -> None:
    """Without a compiler behind it: that nothing in them keeps them from being compiled, and once."""
    config = make_config(kind)
    model, inputs = random_model(config, CPU), random_inputs(config, 2, 7, CPU)
    exact, said = plain(model, inputs)(), list[dict[str, Any]]()
    torch._dynamo.reset()  # of the other kind
    with torch._dynamo.config.patch(error_on_recompile=True):
        run = compiled.compile_parts(model, inputs, said.append, backend="eager")
        assert relative(run(), exact) < 1e-5
    assert [list(one["compile_s"]) for one in said] == [[name] for name in compiled.MODULES]


def test_what_a_process_said_before_it_was_stopped_counts() -> None:
    lines = [
        '{"beside": {"plain graph": {"p50_ms": 40.0}}}', "a warning", '{"beside": {"ours": {"p50_ms": 9.0}}}',
        '{"compile_s": {"encode": 20.5}}', '{"compile_s": {"pre',
    ]  # fmt: skip
    assert compiled.joined("\n".join(lines)) == {
        "beside": {"plain graph": {"p50_ms": 40.0}, "ours": {"p50_ms": 9.0}},
        "compile_s": {"encode": 20.5},
    }


def test_cases_that_fail_or_take_too_long_say_so() -> None:
    case = compiled.Case("pi0", 2, 20, 5)
    assert compiled.measure(case, 0.01) == {"none": "not compiled within 0 s"}
    cases = [case, case._replace(views=1)]
    found = dict(compiled.measure_all(cases, ["no-such-gpu", "nor-this"], 60.0))
    assert found.keys() == set(cases)
    assert all("cuda" in figures["none"].lower() for figures in found.values()), found


def test_compiled_figures_go_into_the_row_of_their_case() -> None:
    there = {**document(), "prompt": 20}
    put_compiled(there, compiled.Case("pi05", 1, 20, 5), {"p50_ms": 19.0, "p99_ms": 20.0})
    assert there["cases"][2]["compiled"]["p50_ms"] == 19.0 and "ours" in there["cases"][2]
    put_compiled(there, compiled.Case("pi0", 3, 20, 5), {"p50_ms": 22.0, "p99_ms": 23.0})
    assert there["cases"][-1].keys() == {"kind", "views", "roofline_ms", "compiled"}
    assert "pi0, 3 views" in table(there)
    with pytest.raises(ValueError, match="prompts of 20 tokens, not 30: give --prompt 20"):
        put_compiled(there, compiled.Case("pi0", 1, 30, 5), {})


@pytest.mark.parametrize("command", [["--quick"], ["--only-compile"]], ids=" ".join)
def test_without_a_gpu_one_sentence_says_so(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        return
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "no CUDA device" in said
    assert said.count("\n") == 1
