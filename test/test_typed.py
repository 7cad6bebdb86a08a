"""What mypy looks at, and how strictly: nothing is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")

ROOT = Path(__file__).resolve().parents[1]
MYPY: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]


def overridden(option: str, value: object) -> set[str]:
    """Modules for which an option has a value."""
    return {
        name for override in MYPY["overrides"] if override.get(option) == value for name in override["module"]
    }


def test_every_benchmark_and_script_is_strict() -> None:
    names = {path.stem for folder in ("bench", "scripts") for path in (ROOT / folder).glob("*.py")}
    assert names - overridden("disallow_untyped_defs", True) == set()


def test_no_module_may_have_errors() -> None:
    assert overridden("ignore_errors", True) == set()


def test_every_folder_of_tests_is_looked_at() -> None:
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "test").rglob("test_*.py")}
    known = {Path(path).relative_to("$MYPY_CONFIG_FILE_DIR") for path in MYPY["mypy_path"]}
    assert folders - known == set()
