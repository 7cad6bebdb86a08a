"""Runs the benches, and writes the tables of their results into the documentation.

    python bench/run.py NAME [options]         # or python bench/NAME.py [options]
    python bench/run.py --list                 # all benches
    python bench/run.py tables [--check]       # every table of README.md and docs/, from bench/results

A bench is a module whose BENCH says what it measures. It yields rows; after each of them the runner prints it
and writes bench/results/NAME.json, with machine, versions and date, so an interrupted run keeps its results.
When a file of bench/results is complete, the tables that are made of it are written into the pages
(bench/tables). --out or --json write elsewhere, which leaves the pages alone.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tables.forms import RESULTS
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

if TYPE_CHECKING:
    import torch

BENCHES = Path(__file__).resolve().parent
OUT = BENCHES.parent / "out"
"""Where benches keep finished episodes and other work of hours, to resume from."""
FEW = 2
"""Most items of a list that is printed."""
Row = dict[str, Any]
Given = argparse.Namespace


@dataclass(frozen=True)
class Bench:
    """name: of the module and its file. measure: yields the rows of the list `rows`, or None after it changed
    `given.document` itself. options: adds the bench's options, whose values are in the file, too. about: what
    else its readers need: seeds, constants.

    parts: instead of measure, by name what measures a part of the file; parts that are not run stay in it.
    key: fields that identify a row; rows of other cases stay in the file. gpu: full-size models on a CUDA
    device, or with --small tiny ones on a CPU; `given` has device and dtype. small: there is a --small, for
    trying. smoke: the smallest useful arguments, for a test. starts_nodes: whether that starts nodes.
    """

    name: str
    measure: Callable[[Given], Iterator[Row | None]] | None = None
    options: Callable[[Callable[..., Any]], object] = lambda add: None
    about: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Callable[[Given], Row]] = field(default_factory=dict)
    normally: Sequence[str] = ()
    rows: str = "cases"
    key: Sequence[str] = ()
    gpu: bool = False
    small: bool = False
    smoke: str = ""
    starts_nodes: bool = False

    @property
    def doc(self) -> str:
        """The docstring of its module."""
        return documentation(BENCHES / f"{self.name}.py")


def documentation(path: Path) -> str:
    """The docstring of a module, which is not imported."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def names() -> list[str]:
    """All benches."""
    return sorted(path.stem for path in BENCHES.glob("*.py") if "\nBENCH = Bench(" in path.read_text())


def main(bench: Bench, words: Sequence[str] | None = None) -> int:
    """Parse, measure, print, write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"{bench.name}.py", description=bench.doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    bench.options(add)
    option_names = [action.dest for action in parser._actions]
    if bench.parts:
        usual = list(bench.normally or bench.parts)
        add(
            "--parts", nargs="+", choices=list(bench.parts), default=usual, help=f"default: {' '.join(usual)}"
        )
    if bench.gpu or bench.small:
        add("--small", action="store_true", help="to try the command anywhere; writes no results")
    add("--out", type=Path, metavar="FOLDER", help=f"folder of {bench.name}.json (default: bench/results)")
    add("--json", type=Path, metavar="FILE", help="write this file instead")
    parser.set_defaults(run=partial(run, bench), option_names=option_names)
    return finish(parser, words)


def run(bench: Bench, given: Given) -> int:
    """Measure all. Raises RuntimeError for a bench of a GPU without a CUDA device."""
    given.file = _file(bench, given)
    if bench.gpu:
        from shared.timing import alone, gpu_id

        given.device, given.dtype = place(given.small)
        with alone(gpu_id(given.device)):
            _measure(bench, given)
    else:
        _measure(bench, given)
    if given.file is not None and given.file.parent.resolve() == RESULTS:
        from tables.pages import fill

        fill()
    return int(given.document.get("status", 0))


def _measure(bench: Bench, given: Given) -> None:
    stored: Row = {}
    if (bench.key or bench.parts) and given.file is not None and given.file.exists():
        stored = json.loads(given.file.read_text())
    for name in given.parts if bench.parts else ():
        if name == given.parts[0]:
            given.document = stored
        part = bench.parts[name](given)
        print(f"{name}: {shown(part)}", flush=True)
        stored |= part
        stored.setdefault("parts", {})[name] = provenance()
        write(given.file, stored)
    if bench.measure is None:
        return
    options = {name: getattr(given, name, None) for name in given.option_names}
    document = given.document = {name: value for name, value in options.items() if _is_plain(value)}
    document |= {**bench.about, "load": round(os.getloadavg()[0], 2), **provenance()}
    if bench.gpu:
        document["dtype"] = str(given.dtype).removeprefix("torch.")
    document[bench.rows] = stored.get(bench.rows, []) if bench.key else []
    for row in bench.measure(given):
        if row is not None:
            document[bench.rows] = [*_others(document[bench.rows], row, bench.key), row]
            print(shown(row), flush=True)
        write(given.file, document)


def _is_plain(value: Any) -> bool:
    """Whether an option's value is for the file; paths are of this machine."""
    return value is not None and not isinstance(value, Path)


def _others(rows: Sequence[Row], row: Row, key: Sequence[str]) -> list[Row]:
    """Those that are of other cases."""
    return [other for other in rows if not key or any(other[name] != row[name] for name in key)]


def _file(bench: Bench, given: Given) -> Path | None:
    """Where results go; nowhere from a small run that names no place."""
    if given.json is not None:
        return Path(given.json)
    if given.out is None and getattr(given, "small", False):
        return None
    return (given.out or RESULTS) / f"{bench.name}.json"


def scratch(given: Given) -> Path:
    """Where a bench keeps work of hours to resume from: out/, or a folder beside results that are
    elsewhere."""
    elsewhere = given.file is not None and given.file.parent.resolve() != RESULTS
    return given.file.parent / OUT.name if elsewhere else OUT


def place(small: bool) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of full-size models, or of tiny ones on one CPU thread. Raises RuntimeError without a
    CUDA device."""
    import torch

    from vla_accel_ros.models.device import find_device

    if small:
        torch.set_num_threads(1)
        return torch.device("cpu"), torch.float32
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device here; --small tries the command on a CPU.")
    return find_device("cuda"), torch.bfloat16


def write(file: Path | None, document: Row) -> None:
    """Write a file of results at once, so that it is whole whenever the bench ends."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n")
        part.replace(file)


def shown(row: Row) -> str:
    """The figures of a row in one line, without long lists."""
    return "  ".join(f"{name} {_short(value)}" for name, value in _scalars(row, ""))


def _scalars(row: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}.")
        elif not isinstance(value, (list, tuple)) or len(value) <= FEW:
            yield f"{prefix}{name}", value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def command(words: Sequence[str]) -> int:
    """Of this module; returns the exit status."""
    name, *options = words or ["--list"]
    if name in ("-h", "--help", "--list"):
        print(__doc__ if name != "--list" else "")
        print(
            "\n".join(
                f"{name:18} {documentation(BENCHES / f'{name}.py').splitlines()[0]}" for name in names()
            )
        )
        return 0
    if name == "tables":
        from tables.pages import command as tables_command

        return tables_command(options)
    if name not in names():
        print(f"no bench is called {name}: --list names them", file=sys.stderr)
        return 2
    bench: Bench = importlib.import_module(name).BENCH
    return main(bench, options)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
