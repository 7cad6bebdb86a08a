"""Who may import whom: the diagram in docs/architecture.md, compared with the imports of every module.

Imports are read from the sources, so those within functions and under TYPE_CHECKING count too. The package's
own face, vla_accel_ros/__init__.py, is not asked: it re-exports lazily. What breaks a rule today is listed
below by name; an entry that no longer breaks it fails as well, so the lists only shrink.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "vla_accel_ros"

LAYERS = (
    {"nodes", "tools"},
    {"fleet", "control", "sensing", "recording", "contract", "sim", "planning", "wire"},
    {"engine"},
    {"kernels", "models"},
    {"types", "option", "extensions", "private_files", "timeline", "interpreter"},
)
"""From top to bottom. No arrow of the diagram goes up."""

OF_NEIGHBOURS = (
    "nodes.fleet",
    "nodes.fleet_inference",
    "nodes.openpi_inference",
    "nodes.params.fleet",
    "nodes.sim_",
)
"""Nodes of a fleet and of the simulator, and their parameters."""

AGAINST_THE_ARROWS: set[tuple[str, str]] = set()
CIRCLES: set[frozenset[str]] = set()
ROS_OUTSIDE_OF_NODES: set[str] = set()

WITHOUT_TORCH = ("types", "timeline", "contract", "control", "sensing", "recording", "planning", "fleet")
"""What a robot without a GPU needs."""
NEEDS_TORCH = {
    "contract.checks.model_check",  # describes a checkpoint, which models reads with torch
    "fleet.replicas.local",  # has an engine
    "planning.plain",
    "planning.measure",  # micro-benchmarks
    "planning.micro",
    "planning.networks",
    "planning.stages",  # runs modules on meta tensors
    "planning.trace",
}

UNDESCRIBED = {"tools"}
"""Packages, with those in them, whose face does not say yet what their modules are."""


def paths() -> dict[str, Path]:
    """Every module's file, by its name without the package's."""
    files = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


@cache
def modules() -> Mapping[str, ast.Module]:
    """Every module, by its name without the package's."""
    return {name: ast.parse(path.read_text(), str(path)) for name, path in paths().items()}


def imported(tree: ast.Module) -> Iterator[str]:
    """Full names of what a module imports; of `from a import b` it may be a.b or a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports() -> Mapping[str, Set[str]]:
    """Which modules of the package each module imports, without the face of the package."""
    imports_of: dict[str, set[str]] = {}
    for name, tree in modules().items():
        targets = imports_of.setdefault(name, set())
        for full in imported(tree):
            target = full.removeprefix(f"{PACKAGE}.")
            if full != target:
                target = target if target in modules() else target.rpartition(".")[0]
                assert target == "" or target in modules(), f"{name} imports {full}, which is nowhere"
                targets.add(target)
        targets -= {"", name}
    imports_of.pop("")
    return imports_of


@cache
def arrows() -> Set[tuple[str, str]]:
    """Of the diagram."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    return set(re.findall(r"^ *(\w+) --> (\w+)$", diagram, re.MULTILINE))


@cache
def folders() -> Mapping[tuple[str, str], Set[tuple[str, str]]]:
    """(folder, folder) -> the imports from one into the other."""
    crossings: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for name, targets in imports().items():
        for target in targets:
            pair = name.partition(".")[0], target.partition(".")[0]
            if pair[0] != pair[1]:
                crossings.setdefault(pair, set()).add((name, target))
    return crossings


def reachable(start: str) -> set[str]:
    """Folders to which arrows lead from one."""
    folders_reached: set[str] = set()
    ahead = {end for begin, end in arrows() if begin == start}
    while ahead:
        folder = ahead.pop()
        folders_reached.add(folder)
        ahead |= {end for begin, end in arrows() if begin == folder} - folders_reached
    return folders_reached


def circles(graph: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    """The strongly connected parts of more than one module (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in graph.get(name, ()):
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            part = frozenset(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            if len(part) > 1:
                components.add(part)

    for name in graph:
        if name not in order:
            visit(name)
    return components


def test_the_diagram_goes_one_way() -> None:
    layer = {folder: number for number, names in enumerate(LAYERS) for folder in names}
    assert {(begin, end) for begin, end in arrows() if layer[begin] > layer[end]} == set()
    assert {folder for folder in layer if folder in reachable(folder)} == set()


def test_imports_follow_the_arrows() -> None:
    against = {
        edge
        for (begin, end), crossing in folders().items()
        if end not in reachable(begin)
        for edge in crossing
    }
    assert against - AGAINST_THE_ARROWS == set(), "new imports against the arrows of docs/architecture.md"
    assert AGAINST_THE_ARROWS - against == set(), "these follow the arrows now: take them off the list"


def test_only_their_own_nodes_import_the_neighbours() -> None:
    neighbours = {"fleet", "planning", "sim", "tools"}
    inside = {
        (name, target)
        for (begin, end), pairs in folders().items()
        if end in neighbours and begin not in neighbours
        for name, target in pairs
    }
    assert {(name, target) for name, target in inside if not name.startswith(OF_NEIGHBOURS)} == set()


def test_every_arrow_is_an_import() -> None:
    existing = {name.partition(".")[0] for name in modules()}
    drawn = {(begin, end) for begin, end in arrows() if {begin, end} <= existing}
    assert drawn - folders().keys() == set()


def test_every_folder_is_in_the_diagram() -> None:
    existing = {name.partition(".")[0] for name in imports()}
    assert existing - {folder for arrow in arrows() for folder in arrow} == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(imports()) == CIRCLES


def test_only_nodes_import_rclpy() -> None:
    importing = {
        name
        for name, tree in modules().items()
        if any(full.partition(".")[0] == "rclpy" for full in imported(tree))
    }
    assert {name for name in importing if name.partition(".")[0] != "nodes"} == ROS_OUTSIDE_OF_NODES


PROGRAM = """
import importlib, json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "rclpy", "ray"):
            raise ModuleNotFoundError(f"{name} is not here")

sys.meta_path.insert(0, Absent())
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""


def test_what_a_robot_without_a_gpu_needs_imports_without_torch_and_ros() -> None:
    names = [name for name in modules() if name.partition(".")[0] in WITHOUT_TORCH]
    assert len(names) > 40
    command = [sys.executable, "-c", PROGRAM, json.dumps([f"{PACKAGE}.{name}" for name in names])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    failed = {name.removeprefix(f"{PACKAGE}."): problem for name, problem in json.loads(done.stdout).items()}
    assert failed.keys() == NEEDS_TORCH, failed


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in paths()} - {""}))
def test_the_face_of_a_package_says_what_its_modules_are(package: str) -> None:
    docstring = ast.get_docstring(modules()[package]) or ""
    assert docstring, f"{package}/__init__.py has no docstring"
    if package.partition(".")[0] in UNDESCRIBED:
        return
    within = {name.rpartition(".")[2] for name in modules() if name.rpartition(".")[0] == package}
    missing = {name for name in within - {"__main__"} if not re.search(rf"\b{name}\b", docstring)}
    if package == "kernels.reference":  # modules are called as the kernels that they are the reference of
        missing = set()
    assert missing == set()
