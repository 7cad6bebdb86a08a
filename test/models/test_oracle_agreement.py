"""The comparison with recordings in bfloat16 lets rounding pass, and no mistake of a model."""

from __future__ import annotations

import pytest
import torch
from half_recording import half_recording
from oracle import Oracle, fixture_names
from oracle_agreement import agree
from oracle_runs import Run
from torch import Tensor

from vla_accel_ros.models.layers import gemma
from vla_accel_ros.models.layers.gemma import rotate as gemma_rotate


@pytest.fixture(autouse=True)
def without_gradients() -> object:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=fixture_names("pi0", "pi05"))
def recording(request: pytest.FixtureRequest) -> Oracle:
    with torch.no_grad():
        return half_recording(request.param)


def compare(recording: Oracle) -> None:
    run = Run(recording, "packed")
    agree(run, Run.hidden, run.recorded("prefix_out"))
    agree(run, lambda run: run.keys_or_values("k"), run.recorded_kv("k"))
    agree(run, Run.velocities, recording["v_t"])
    agree(run, lambda run: run.actions("openpi"), recording["actions"])


def test_rounding_passes(recording: Oracle) -> None:
    compare(recording)


WRONG = {
    "rotary base": ("ROPE_THETA", 7.0),
    "norm epsilon": ("NORM_EPS", 0.3),
    "score scale": ("rotate", lambda *given: 1.2 * gemma_rotate(*given)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_float64_gets_wrong_too_does_not(
    recording: Oracle, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemma, *WRONG[wrong])
    with pytest.raises(AssertionError, match="the recording is off by"):
        compare(recording)


def test_what_bfloat16_alone_gets_wrong_does_not(recording: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    def rough(x: Tensor, *tables: Tensor) -> Tensor:
        return gemma_rotate(x, *tables) * (1.2 if x.dtype == torch.bfloat16 else 1.0)

    monkeypatch.setattr(gemma, "rotate", rough)
    with pytest.raises(AssertionError, match="we are off by"):
        compare(recording)
