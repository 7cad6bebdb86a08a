"""bench/engine_path.py with tiny models on a CPU: a row for each case, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import engine_path
import numpy as np
import pytest
import torch

from full_size.figures import Pinned
from grids.sizes import small
from vla_accel_ros.tools.bench.policies import random_observation, random_policy

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_case_has_the_engines_path_beside_its_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--small", "--runs", "3", "--views", "1", "3", "--size", "30", "40", "--out", str(tmp_path)]
    assert engine_path.main(given) == 0
    document = json.loads((tmp_path / "engine_path.json").read_text())
    assert {"machine", "versions", "date", "seeds", "steps", "runs", "dtype"} <= document.keys()
    cases = {(case["kind"], case["views"]): case for case in document["cases"]}
    assert cases.keys() == {(kind, views) for kind in ("pi0", "pi05", "smolvla") for views in (1, 3)}
    for case in cases.values():
        engine, stages = case["engine"], case["stages"]
        assert engine["p99_ms"] >= engine["p50_ms"] > 0 < stages["p50_ms"]
        assert engine["p99_over_p50"] == pytest.approx(engine["p99_ms"] / engine["p50_ms"], rel=1e-3)
        assert case["difference_ms"] == pytest.approx(engine["p50_ms"] - stages["p50_ms"], abs=1e-3)
        assert case["upload"]["p50_ms"] > 0
        assert case["allocated_bytes"] is None and case["pinned_tensors"] == 0, "a CPU needs neither"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and lines[1].startswith("pi0, 1 view ")


def test_plain_torch_is_measured_beside_the_stages_if_it_is_asked_for(tmp_path: Path) -> None:
    given = ["--small", "--runs", "2", "--plain", "2", "--kinds", "smolvla", "--views", "1"]
    assert engine_path.main([*given, "--size", "30", "40", "--out", str(tmp_path)]) == 0
    (case,) = json.loads((tmp_path / "engine_path.json").read_text())["cases"]
    assert case["plain"]["p99_ms"] >= case["plain"]["p50_ms"] > 0
    assert case["made_s"] > 0


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert engine_path.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err


def test_page_locked_tensors_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU nothing can be page-locked: what is counted is that Python asks for it."""

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        return torch.overrides.handle_torch_function(_pinned, (tensor,), tensor)

    def _pinned(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    _pinned.__name__ = "pin_memory"
    with Pinned() as pinned:
        torch.zeros(5)
        pin_memory(torch.zeros(3, dtype=torch.int32))
        pin_memory(torch.zeros(2))
    assert (pinned.tensors, pinned.bytes) == (2, 20)


def test_a_frame_in_page_locked_memory_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy(small().staggered_model, CPU, torch.float32)
    observation = random_observation(policy, 2, 20, (6, 8), seed=3)
    placed, registration = engine_path.page_locked(observation)
    for name, image in observation.images.items():
        np.testing.assert_array_equal(placed.images[name], image)
    registration.end()


def test_the_prompt_has_as_many_tokens_as_wanted() -> None:
    policy = random_policy(small().staggered_model, CPU, torch.float32)
    for prompt in (14, 20, 32):
        made = random_observation(policy, 1, prompt)
        assert len(policy.prompt(made.instruction, made.state)) == prompt
    for prompt in (5, 33):
        with pytest.raises(ValueError, match=f"prompt is {prompt} tokens; give"):
            random_observation(policy, 1, prompt)
