"""vla tune without a GPU."""

from __future__ import annotations

import pytest

from vla_accel_ros.tools.cli import main


def test_without_a_gpu_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["tune"]) == 1
    assert capsys.readouterr().err == (
        "vla tune: kernels are tuned on a GPU, and torch sees no CUDA device here.\n"
    )
