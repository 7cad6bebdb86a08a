"""CONTRIBUTING.md names what is there, and the hooks before a commit are those of `make lint`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def test_every_path_it_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:vla_accel_ros|test|docs|scripts|bench)/[\w./-]+)`", text))
    assert len(named) > 10
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_every_target_of_make_it_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert named and named <= targets


def test_hooks_run_the_tools_of_make_lint_and_download_nothing() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    entries = [hook["entry"].replace(" --force-exclude", "") for hook in repository["hooks"]]
    assert entries == [".venv/bin/ruff check", ".venv/bin/ruff format --check", ".venv/bin/mypy"]
