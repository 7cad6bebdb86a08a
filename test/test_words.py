"""Assigned names are nouns of the field, and files are short: shares and limits by room, which only go down.

A room is a folder of the package, or bench, or test. Its share counts the names that assignments and loops
bind (not parameters) and are in VAGUE. Who renames in a room lowers its limit. `python test/test_words.py`
prints all shares.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "vla_accel_ros"
TOP = "(top)"

WORDS = """
after again apart asked at away before began beside both came chosen doing each found given gone had has
held here it kept known lasting late least left made mine most now of one others over own place rest
said seen sentence taken theirs them there these those told took until wanted was what why wrong
"""
VAGUE = frozenset(WORDS.split())
"""Pronouns, participles and the like, which say nothing about a thing. The list only grows."""

LIMITS = {
    TOP: 0.01,
    "bench": 0.02,
    "contract": 0.01,
    "control": 0.01,
    "engine": 0.01,
    "fleet": 0.01,
    "kernels": 0.01,
    "models": 0.01,
    "nodes": 0.01,
    "planning": 0.01,
    "recording": 0.01,
    "sensing": 0.01,
    "sim": 0.01,
    "test": 0.07,
    "tools": 0.02,
    "wire": 0.01,
}
"""Room -> the greatest share of vague names. They end at 0.01 for every room."""

MOST_LINES = 350
LONGER = {
    "control/command_stream.py",
    "control/following/follower.py",
    "engine/config.py",
    "engine/runner/runner.py",
    "fleet/robot/client.py",
    "models/processing/lerobot_processors.py",
    "nodes/fleet/node.py",
    "nodes/trajectory/node.py",
}
"""Files of the package with more lines. Split them; nothing is added here."""

BUDGET = 99_255
"""Lines of the package."""


@cache
def files() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def sources() -> dict[Path, ast.Module]:
    """Of the package, and of what is beside it."""
    beside = (path for folder in ("bench", "test") for path in sorted((ROOT / folder).rglob("*.py")))
    return files() | {path: ast.parse(path.read_text()) for path in beside}


def room(path: Path) -> str:
    if not path.is_relative_to(PACKAGE):
        return path.relative_to(ROOT).parts[0]
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else TOP


def length(path: Path) -> int:
    return path.read_text().count("\n")


@cache
def assigned() -> Counter[str]:
    """Room -> how many names are assigned in it."""
    return Counter(room(path) for path, tree in sources().items() for _ in names(tree))


@cache
def vague() -> dict[str, list[str]]:
    """Room -> every vague name, as file:line: name."""
    places: dict[str, list[str]] = {name: [] for name in assigned()}
    for path, tree in sources().items():
        places[room(path)] += [
            f"{path.relative_to(ROOT)}:{name.lineno}: {name.id}" for name in names(tree) if name.id in VAGUE
        ]
    return places


def names(tree: ast.Module) -> list[ast.Name]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def test_rooms_have_a_limit_each() -> None:
    assert LIMITS.keys() == assigned().keys()


@pytest.mark.parametrize("folder", LIMITS)
def test_names_are_nouns_of_the_field(folder: str) -> None:
    share = len(vague()[folder]) / assigned()[folder]
    assert share <= LIMITS[folder], "rename some of these:\n" + "\n".join(vague()[folder])


def test_files_are_short_unless_listed() -> None:
    longer = {str(path.relative_to(PACKAGE)) for path in files() if length(path) > MOST_LINES}
    assert longer - LONGER == set(), f"split them: a file has {MOST_LINES} lines at most"
    assert LONGER - longer == set(), "these are short now, or gone: take them off the list"


def test_package_keeps_its_budget() -> None:
    assert sum(map(length, files())) <= BUDGET


if __name__ == "__main__":
    for folder in sorted(assigned()):
        share = len(vague()[folder]) / assigned()[folder]
        print(f'    "{folder}": {math.ceil(1000 * share) / 1000:.3f},')
    print([str(path.relative_to(PACKAGE)) for path in files() if length(path) > MOST_LINES])
    print(sum(map(length, files())))
