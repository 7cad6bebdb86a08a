"""What `make sanitize` looks at, without a GPU: every kernel, few cases of a test, and what is wrong."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import sanitize


def test_every_cuda_kernel_is_looked_at() -> None:
    kernels = sum(file.read_text().count("__global__") for file in sanitize.CUDA.glob("*.cu"))
    named = [name for name in sanitize.ours() if name.startswith("kernel_name=")]
    assert len(named) == kernels + 1 and "kernel_name=planted" in named
    triton = re.compile(sanitize.ours()[0].removeprefix("regex="))
    assert triton.match("_gated_up") and not triton.match("_ZN2at6native") and not triton.match("nvjet_hsh")


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


CHILD = """
import pathlib, subprocess, sys, time
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
flags = [pathlib.Path(name) for name in sys.argv[1:]]
flags[0].touch()
while len(flags) == 1 or not flags[1].exists():
    time.sleep(0.01)
sys.exit(3)
"""
"""A process with a child. It says which, touches its own flag, and ends once the other one's is there."""


def test_processes_leave_nothing_that_was_begun_and_begin_nothing_too_late(tmp_path: Path) -> None:
    """One ends and one hangs; time goes on when both have a child, however long that takes."""
    flags = [tmp_path / "ends", tmp_path / "hangs"]
    command = [sys.executable, "-c", CHILD]
    commands = {
        "ends": ([*command, *map(str, flags)], 200.0),
        "hangs": ([*command, str(flags[1])], 1.0),
        "late": (["true"], 1.0),
    }
    clock = lambda: 100.0 if all(flag.exists() for flag in flags) else 0.0  # noqa: E731
    with sanitize.Processes(at_once=2, clock=clock) as processes:
        ended = {name: (status, int(said)) for name, status, said in processes.run(commands, 0.3)}
    assert {name: status for name, (status, _) in ended.items()} == {"ends": 3, "hangs": None}
    for _, pid in ended.values():
        deadline_s = time.monotonic() + 60.0
        while runs(pid):  # its parent has been waited for, it has only been sent a signal
            assert time.monotonic() < deadline_s, f"{pid} is left"


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_is_under_way_is_ended_on_the_way_out() -> None:
    with sanitize.Processes() as processes:
        next(processes.run({"ends": (["true"], 9.0), "hangs": (["sleep", "60"], 9.0)}, 9.0))
        ((hangs, _, _),) = processes._live.values()
    assert hangs.returncode == -9
