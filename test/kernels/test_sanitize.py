"""What `make sanitize` looks at, without a GPU: every kernel, few cases of a test, and what is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sanitize


def test_every_cuda_kernel_is_looked_at() -> None:
    kernels = sum(file.read_text().count("__global__") for file in sanitize.CUDA.glob("*.cu"))
    named = [name for name in sanitize.ours() if name.startswith("kernel_name=")]
    assert len(named) == kernels + 1 and "kernel_name=planted" in named
    triton = re.compile(sanitize.ours()[0].removeprefix("regex="))
    assert triton.match("_gated_up") and not triton.match("_ZN2at6native") and not triton.match("nvjet_hsh")


@pytest.mark.parametrize(("count", "kept"), [(1, [0]), (2, [0, 1]), (64, [0, 63])])
def test_of_many_cases_a_few_are_run(count: int, kept: list[int]) -> None:
    assert sanitize.spread(range(count)) == kept


def test_every_test_is_seen_by_every_tool() -> None:
    said = "..\nTEST a.py::one\nTEST a.py::two\nTEST b.py::three\n3 passed"
    *planted, first, second, third, fourth = sanitize.pieces(sanitize.functions(said))
    assert [piece.tool for piece in planted] == list(sanitize.TOOLS) and not any(p.tests for p in planted)
    assert first == sanitize.Piece("memcheck", ("a.py::one", "a.py::two")) == second._replace(tool="memcheck")
    assert third.tests == fourth.tests == ("b.py::three",)
    assert [piece.name for piece in (second, *second.cut())] == [
        "racecheck, a.py", "racecheck, a.py::one", "racecheck, a.py::two",
    ]  # fmt: skip
    assert third.cut() == [] and third.command[-2:] == ["cases", "b.py::three"]


INTERNAL = "========= Internal Sanitizer Error: the tool gave up"
RACE = "========= Error: Race reported between Write access at _mix+0x1 and Write access at _mix+0x1"


def test_errors_are_wrong_but_those_that_were_planted() -> None:
    tests, planted = sanitize.Piece("racecheck", ("a.py::one",)), sanitize.Piece("racecheck")
    assert tests.wrong(0, "1 passed") == planted.wrong(sanitize.FOUND, RACE) == ""
    assert tests.wrong(1, "1 failed, 2 passed in 3 s") == "tests failed"
    for said in (RACE, f"{RACE}\n{INTERNAL}", "2 passed"):
        assert tests.wrong(sanitize.FOUND, said) == "found errors"
        assert not tests.unseen(sanitize.FOUND, said)
    for status in (0, 1, -11, None):
        assert "does not find what was planted" in planted.wrong(status, "") and not planted.unseen(
            status, ""
        )


OWN_FAILURES = (
    *((status, "") for status in (-11, 134, 1, 5)),
    (None, RACE),
    (1, f"1 failed\n{INTERNAL}"),
    (sanitize.FOUND, INTERNAL),
)


@pytest.mark.parametrize(("status", "said"), OWN_FAILURES)
def test_a_tool_that_fails_itself_has_seen_nothing(status: int | None, said: str) -> None:
    tests = sanitize.Piece("racecheck", ("a.py::one",))
    assert tests.unseen(status, said) and not tests.wrong(status, said)


class Said:
    """Stands for processes: pieces end with the status that is given for their names, else with 0."""

    def __init__(self, **statuses: int | None) -> None:
        self.statuses, self.run_of = {"planted": sanitize.FOUND, **statuses}, list[str]()

    def run(self, commands: dict[str, object], limit_s: float) -> Iterator[tuple[str, int | None, str]]:
        for name in commands:
            self.run_of.append(name)
            yield name, self.statuses.get(name.split("::")[-1].split()[-1], 0), "1 failed"


FILE = [f"a.py::test{index}" for index in range(9)]


def test_a_file_that_a_tool_does_not_get_through_is_cut_and_what_it_cannot_run_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said: Any = Said(**{"a.py": None, "test3": -11})
    assert sanitize.judge(said, sanitize.pieces(FILE)) == 0
    assert len(said.run_of) == 2 + 2 + 2 * 9
    lines = capsys.readouterr().out.splitlines()
    assert "NOT SEEN: racecheck, a.py::test3: the tool was ended by signal 11" in lines
    assert lines[-1] == "memcheck: 1 of 9 tests not seen; racecheck: 1 of 9 tests not seen"


@pytest.mark.parametrize(
    "statuses",
    [
        {"a.py": sanitize.FOUND},
        {"a.py": 1},
        {"a.py": None, "test1": None, "test2": -6},
        {"a.py": -11, "test8": sanitize.FOUND},
        {"planted": 0},
    ],
)
def test_errors_and_too_much_that_was_not_seen_are_wrong(statuses: dict[str, int | None]) -> None:
    said: Any = Said(**statuses)
    assert sanitize.judge(said, sanitize.pieces(FILE)) == 1


def test_nothing_that_was_begun_is_left() -> None:
    """A process that does not end has a child; both are gone, and one that is too late is not begun."""
    child = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); "
    commands = {
        "ends": ([sys.executable, "-c", child + "time.sleep(0.5); sys.exit(3)"], 20.0),
        "hangs": ([sys.executable, "-c", child + "time.sleep(60)"], 1.0),
        "late": (["true"], 1.0),
    }
    with sanitize.Processes(at_once=2) as processes:
        ended = {name: (status, int(said)) for name, status, said in processes.run(commands, 0.3)}
    assert {name: status for name, (status, _) in ended.items()} == {"ends": 3, "hangs": None}
    for _, pid in ended.values():
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_what_is_under_way_is_ended_on_the_way_out() -> None:
    with sanitize.Processes() as processes:
        next(processes.run({"ends": (["true"], 9.0), "hangs": (["sleep", "60"], 9.0)}, 9.0))
        ((hangs, _, _),) = processes._live.values()
    assert hangs.returncode == -9
