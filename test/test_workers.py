"""Tests that start nodes have workers of their own: each file of them is in a group of theirs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from workers import FIRST, STARTING, group

HERE = Path(__file__).parent
FIXTURES = {"shared_start", "operator", "ros_domain", "shared_domain"}
FILES = sorted(path.relative_to(HERE) for path in HERE.rglob("test_*.py"))


def starts(path: Path) -> bool:
    """Whether a function of a file asks for what starts nodes, or for a graph."""
    text, names = (HERE / path).read_text(), FIXTURES | ({"start"} if path.parts[0] == "nodes" else set())
    if not any(name in text for name in names):
        return False  # to read it as Python takes a while
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    return any(argument.arg in names for function in functions for argument in function.args.args)


@pytest.mark.parametrize("path", [path for path in FILES if starts(path)], ids=str)
def test_who_starts_nodes_is_in_a_group(path: Path) -> None:
    assert group(path) in STARTING, f"add it to test/workers.py: {path}"


def test_every_file_of_the_groups_is_there() -> None:
    listed = [
        f"{folder}/test_{name}.py"
        for folders in STARTING.values()
        for folder, names in folders.items()
        for name in names.split()
    ]
    assert {*listed, *FIRST} <= {path.as_posix() for path in FILES}
    assert len(set(listed)) == len(listed), "one of them is listed twice"
