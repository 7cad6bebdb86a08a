"""`vla compare`: its verdict on what lerobot recorded, and its sentences where the public code cannot run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import make_checkpoint
from smolvla_recording import CASES, SPEC, Case, make_smolvla_folder

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.compare.errors import errors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_smolvla_folder(tmp_path / "model")


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python without packages."""
    file = tmp_path / "python"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    file.chmod(0o755)
    return file


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line and len(line) < 500, line
    return line


def chunks(folder: Path, sign: float = 1.0) -> np.ndarray:
    """Ours of the recorded observations; sign: of the joints."""
    engine = Engine(load_policy(folder), steps=SPEC["num_steps"])
    actions = []
    for case in map(Case, CASES):
        observation = replace(case.observation, state=sign * case.observation.state)
        with engine.observe(observation) as prefix:
            actions.append(engine.act(prefix, noise=case["noise"].numpy()).actions)
    return np.stack(actions)


def test_compare_what_lerobot_recorded_is_the_same_and_other_joints_are_not(folder: Path) -> None:
    recorded = np.stack([Case(index)["actions"].numpy() for index in CASES])
    trained = describe(folder).actions
    assert errors(chunks(folder), recorded, trained).same
    different = errors(chunks(folder, sign=-1.0), recorded, trained)
    assert not different.same
    np.testing.assert_allclose(different.range, trained[1] - trained[0])


def test_compare_error_counts_in_each_dimension_by_its_own_range() -> None:
    peer = np.zeros((1, 2, 3))
    trained = np.array([[-1.0, -0.01, 0.0], [1.0, 0.01, 0.0]])
    ours = peer + [1e-3, 1e-3, 0.0]
    comparison = errors(ours, peer, trained)
    np.testing.assert_allclose(comparison.shares, [5e-4, 5e-2, 0.0])
    assert not comparison.same
    with pytest.raises(ValueError, match=r"2 actions .* 3 actions"):
        errors(peer, np.zeros((1, 3, 3)), trained)
    with pytest.raises(ValueError, match="peer"):
        errors(peer, np.full((1, 2, 3), np.nan), trained)


def test_compare_peer_without_its_packages_is_told_with_what_to_type(
    folder: Path, bare_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, folder, "--peer", "lerobot", "--python", bare_python)
    assert "numpy" in line and f"{bare_python} -m pip install" in line and "lerobot" in line


def test_compare_python_that_is_not_there_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "/nowhere/python" in refusal(capsys, folder, "--peer", "lerobot", "--python", "/nowhere/python")


def test_compare_folder_of_another_program_and_one_that_lacks_settings_are_refused_first(
    folder: Path, tmp_path: Path, bare_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = ("--python", bare_python, "--peer")
    assert "lerobot" in refusal(capsys, folder, *peer, "openpi")
    openpi = make_checkpoint(tmp_path / "openpi")
    assert "numpy" in refusal(capsys, openpi, *peer, "openpi")
    (openpi / "config.json").write_text('{"action_horizon": 10}')
    assert main(["compare", str(openpi), *map(str, peer), "openpi"]) == 2
