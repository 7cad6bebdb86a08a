"""bench/precision.py on a CPU: the bundled policy by the references, a row for each choice, and no times."""

from __future__ import annotations

import json

from precision import main

from vla_accel_ros.engine.stages.precision import EXACT, PRECISIONS


def test_the_bundled_policy_is_measured_in_every_precision(tmp_path, capsys) -> None:
    arguments = ["--subjects", "bundled", "--frames", "3", "--out", str(tmp_path)]
    assert main(arguments) == 0
    document = json.loads((tmp_path / "precision_bundled.json").read_text())
    cases = {(case["dtype"], case["precision"]): case for case in document["cases"]}
    assert document["frames"] == 3 and document["moved_rms_mrad"] > 10
    assert {precision for _, precision in cases} == set(PRECISIONS)
    exact = cases["bfloat16", EXACT]
    assert exact["to_exact"] == 0 < exact["to_float32"] < 0.01
    errors = [cases["bfloat16", precision]["to_exact"] for precision in ("int8", "fp8", "int4")]
    assert 0 < errors[0] < errors[1] < errors[2] < 0.1
    assert "bfloat16 int4" in capsys.readouterr().out


def test_full_size_models_need_a_gpu(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--subjects", "random", "--out", str(tmp_path)]) != 0
    assert "torch sees no CUDA device here" in capsys.readouterr().err
