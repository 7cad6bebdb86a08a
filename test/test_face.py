"""What `from vla_accel_ros import ...` gives: names that import no more than they need, and their page."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from installed import python

import vla_accel_ros

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", vla_accel_ros.__all__)
def test_every_name_is_that_of_the_module_which_defines_it(name: str) -> None:
    defined = getattr(vla_accel_ros, name)
    assert defined is getattr(importlib.import_module(defined.__module__), name)
    assert defined.__module__ == vla_accel_ros._MODULES[name]


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    (typed,) = (
        node for node in ast.parse(Path(vla_accel_ros.__file__).read_text()).body if isinstance(node, ast.If)
    )
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == vla_accel_ros._MODULES
    assert sorted(vla_accel_ros.__all__) == sorted(vla_accel_ros._MODULES)
    assert set(vla_accel_ros.__all__) <= set(dir(vla_accel_ros))


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="Motor"):
        _ = vla_accel_ros.Motor


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import vla_accel_ros", "numpy torch rclpy"),
        ("from vla_accel_ros import Observation, Chunk, Contract", "torch rclpy"),
        ("from vla_accel_ros import Engine, load_policy", "rclpy"),
    ],
)
def test_a_name_brings_only_what_it_needs(statement: str, absent: str) -> None:
    done = python(f"import sys\n{statement}\nprint(sorted(set({absent.split()}) & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("script", ["api.py", "parameters.py"])
def test_generated_files_are_up_to_date(script: str) -> None:
    command: list[str | Path] = [sys.executable, ROOT / "scripts" / script, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
