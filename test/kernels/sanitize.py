"""The kernels under NVIDIA's compute-sanitizer: memory, and races in shared memory (`make sanitize`).

    python test/kernels/sanitize.py

runs a few cases of every kernel test under memcheck and racecheck and fails on any error. Tensors have memory
of their own meanwhile: in that of PyTorch's allocator a neighbour's is not out of bounds. Kernels of PyTorch
are not looked at. A tool that finds nothing must be one that could: each has to find an error that is planted
for it. The cases run once without a tool, so that all is compiled.

A piece is the tests of one file under one tool, in a process of its own that is killed, with all it started,
after FILE_S. A file that a tool does not get through is cut into its tests, TEST_S each. A test that it
does not get through either, or ends by itself in, is named; more than FEW_UNSEEN of these fail the whole.
After TOTAL_S nothing is begun any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
CUDA = HERE.parents[1] / "vla_accel_ros" / "kernels" / "cuda"

TOOLS = ("memcheck", "racecheck")
COMPILE_S, FILE_S, TEST_S, TOTAL_S = 180.0, 60.0, 45.0, 330.0
AT_ONCE = 6
"""Pieces on the GPU."""

FEW_UNSEEN = 0.2
"""The share of a tool's tests that it may be unable to run."""

FOUND = 99
"""Status of a tool that has found errors."""

TESTS_FAILED = 1
"""Status of pytest, which a tool that has found none passes on."""

FAILED = re.compile(r"^.*\b\d+ failed\b", re.MULTILINE)
OWN_ERROR = re.compile(
    "Internal Sanitizer Error|process didn't terminate successfully|application terminated"
)
FINDING = re.compile("Invalid __|Race reported|hazard detected|Misaligned|out of bounds|ninitialized|Barrier")
"""What a tool says that has failed, and one that has found something: its status is an error for both."""

EACH = 2
"""Cases of a test: the first and the last."""

PR_SET_PDEATHSIG = 1
TEST = "TEST "

LEFT_OUT = (
    "compil", "published", "refused", "cannot_be", "twin_is_what", "any_segments", "more_than_a_thousand",
    "stages", "tuning", "block_shapes", "sanitize",
)  # fmt: skip
"""Tests that launch nothing of ours, or too much for a tool that makes every access slow."""

OPTIONS = (
    "--error-exitcode", str(FOUND), "--target-processes", "application-only", "--report-api-errors", "no",
    "--print-limit", "20", "--show-backtrace", "device",
)  # fmt: skip

PLANTED = """
extern "C" __global__ void planted(int* out, int tool) {
    __shared__ int place[64];
    if (tool == 0) out[64 + threadIdx.x] = 1;          // beyond its 64 values
    if (tool == 1) {                                   // read before its neighbour has surely written
        place[threadIdx.x] = threadIdx.x;
        out[threadIdx.x] = place[63 - threadIdx.x];
    }
}
"""


class Piece(NamedTuple):
    """Tests of one file, or the planted error if there are none, under one tool."""

    tool: str
    tests: tuple[str, ...] = ()
    limit_s: float = FILE_S

    @property
    def command(self) -> list[str]:
        what = ["cases", *self.tests] if self.tests else ["planted", self.tool]
        kernels = [option for name in ours() for option in ("--kernel-name", name)]
        return [sanitizer(), "--tool", self.tool, *OPTIONS, *kernels, sys.executable, __file__, *what]

    @property
    def name(self) -> str:
        if not self.tests:
            return f"{self.tool}, planted"
        file = self.tests[0].split("::")[0]
        return f"{self.tool}, {self.tests[0] if len(self.tests) == 1 else file}"

    def wrong(self, status: int | None, said: str) -> str:
        """What the tool or the tests found, or nothing."""
        if not self.tests:
            return "" if status == FOUND else f"does not find what was planted for it ({_told(status)})"
        own = OWN_ERROR.search(said) is not None
        if status == FOUND and (FINDING.search(said) or not own):
            return "found errors"
        return "tests failed" if status == TESTS_FAILED and FAILED.search(said) and not own else ""

    def unseen(self, status: int | None, said: str) -> bool:
        """Whether the tool did not get to its end."""
        return bool(self.tests) and status != 0 and not self.wrong(status, said)

    def cut(self) -> list[Piece]:
        """Its tests one by one; none if it is one."""
        return [] if len(self.tests) < 2 else [Piece(self.tool, (test,), TEST_S) for test in self.tests]


class Ended(NamedTuple):
    """status: None if it was killed as its time was up, or was not begun."""

    piece: Piece
    status: int | None
    said: str
    begun: bool = True


def pieces(tests: Sequence[str]) -> list[Piece]:
    """What was planted, then every file, under each tool."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.split("::")[0], []).append(test)
    planted = [Piece(tool) for tool in TOOLS]
    return planted + [Piece(tool, tuple(alike)) for alike in files.values() for tool in TOOLS]


def ours() -> list[str]:
    """Filters of the tool for the kernels of this package: Triton's by their underscore, CUDA's by name."""
    text = "\n".join(file.read_text() for file in sorted(CUDA.glob("*.cu")))
    names = re.findall(r"__global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(", text)
    return ["regex=^_[a-z]", *(f"kernel_name={name}" for name in (*names, "planted"))]


def main() -> int:
    """Check; prints a line for each piece, and what it said where that is of interest."""
    import torch

    if not torch.cuda.is_available():
        print("make sanitize needs a CUDA device: torch sees none", file=sys.stderr)
        return 2
    if not Path(sanitizer()).is_file():
        print("compute-sanitizer is not installed: it comes with NVIDIA's CUDA toolkit", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was begun is ended
    begin = time.monotonic()
    with Processes() as processes:
        compiled = {"": ([sys.executable, __file__, "cases"], COMPILE_S)}
        ((_, status, said),) = processes.run(compiled, COMPILE_S)
        print(f"without a tool: {_last(said)} ({time.monotonic() - begin:.0f} s)", flush=True)
        if status != 0:
            print(said)
            return 1
        return judge(processes, pieces(functions(said)))


def judge(processes: Processes, wanted: Sequence[Piece]) -> int:
    """Run the pieces, then the tests of those that did not get through; 1 if something is wrong."""
    begin, wrong, unseen = time.monotonic(), 0, list[Ended]()
    tests = {test for piece in wanted for test in piece.tests}
    while wanted:
        again = list[Piece]()
        for ended in _run(processes, wanted, begin + TOTAL_S - time.monotonic()):
            piece, status = ended.piece, ended.status
            found = piece.wrong(status, ended.said)
            if piece.unseen(status, ended.said):
                again += piece.cut()
                unseen += [] if piece.cut() else [ended]
                told = f"{_told(status)}{', so its tests are run one by one' * bool(piece.cut())}"
            else:
                told = found or ("found" if not piece.tests else _last(ended.said))
            print(f"{piece.name}: {told} ({time.monotonic() - begin:.0f} s)", flush=True)
            if found:
                wrong += 1
                print("\n".join(ended.said.splitlines()[:120]), flush=True)
        wanted = again
    return int(wrong > 0 or _too_many(unseen, tests))


def _run(processes: Processes, wanted: Sequence[Piece], limit_s: float) -> Iterator[Ended]:
    by_name = {piece.name: piece for piece in wanted}
    commands = {name: (piece.command, piece.limit_s) for name, piece in by_name.items()}
    left = dict(by_name)
    for name, status, said in processes.run(commands, limit_s):
        yield Ended(left.pop(name), status, said)
    # Cut no further: there is no time for the tests either.
    for piece in left.values():
        for test in piece.tests or ("",):
            yield Ended(Piece(piece.tool, (test,) if test else ()), None, "", begun=False)


def _too_many(unseen: Sequence[Ended], tests: Collection[str]) -> bool:
    """Says what was not seen, and why, under each tool."""
    for ended in unseen:
        why = f"the tool {_told(ended.status)}" if ended.begun else f"not begun within {TOTAL_S:.0f} s"
        print(f"NOT SEEN: {ended.piece.name}: {why}", flush=True)
        print("\n".join(f"    {line}" for line in ended.said.splitlines()[-6:]), flush=True)
    counts = {tool: sum(ended.piece.tool == tool for ended in unseen) for tool in TOOLS}
    print(
        "; ".join(f"{tool}: {count} of {len(tests)} tests not seen" for tool, count in counts.items()),
        flush=True,
    )
    return any(count > FEW_UNSEEN * len(tests) for count in counts.values())


class Processes:
    """Commands in process groups of their own, none of which outlives this: what is left on a GPU slows all
    that is measured after it."""

    def __init__(self, at_once: int = AT_ONCE, clock: Callable[[], float] = time.monotonic) -> None:
        self.at_once, self._clock = at_once, clock
        self._live = dict[str, tuple[subprocess.Popen[str], Any, float]]()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for process, said, _ in self._live.values():
            _kill(process)
            said.close()

    def run(
        self, commands: dict[str, tuple[list[str], float]], limit_s: float
    ) -> Iterator[tuple[str, int | None, str]]:
        """Name, status (None if it was killed after its own limit) and output of each, as they end. What was
        not begun within limit_s does not come."""
        waiting, end = list(commands.items()), self._clock() + limit_s
        while True:
            while waiting and len(self._live) < self.at_once and self._clock() < end:
                name, (command, seconds) = waiting.pop(0)
                self._live[name] = (*_begun(command), self._clock() + seconds)
            if not self._live:
                return
            for name, (process, said, last) in list(self._live.items()):
                ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
                if ended or self._clock() > last:
                    status = _kill(process)
                    del self._live[name]
                    with said:
                        said.seek(0)
                        yield name, status if ended else None, said.read()
            time.sleep(0.05)


def cases(tests: Sequence[str]) -> int:
    """A few cases of each of these tests, or of all."""
    given = ["-q", "-p", "no:cacheprovider", "--no-header", "-k", f"not ({' or '.join(LEFT_OUT)})"]
    return int(pytest.main([*given, *(tests or [str(HERE)])], plugins=[Few()]))


class Few:
    """A plugin of pytest that keeps EACH cases of a test, and says which tests there are."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            self._found.setdefault(item.nodeid.split("[")[0], []).append(item)
        items[:] = [item for alike in self._found.values() for item in spread(alike)]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for test in self._found:
            terminalreporter.line(f"{TEST}{test}")


def functions(said: str) -> list[str]:
    """The tests that a run of cases says there are."""
    return [line.removeprefix(TEST) for line in said.splitlines() if line.startswith(TEST)]


def spread(alike: Sequence[Any]) -> list[Any]:
    """EACH of them, from the first to the last."""
    if len(alike) <= EACH:
        return list(alike)
    return [alike[index * (len(alike) - 1) // (EACH - 1)] for index in range(EACH)]


def planted(tool: str) -> None:
    """Launch a kernel with an error of the tool's kind."""
    import torch
    from cuda.bindings import driver, nvrtc

    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    (_, program) = nvrtc.nvrtcCreateProgram(PLANTED.encode(), b"planted.cu", 0, [], [])
    major, minor = torch.cuda.get_device_capability()
    nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()])
    code = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, code)
    (_, library) = driver.cuLibraryLoadData(bytes(code), [], [], 0, [], [], 0)
    (_, kernel) = driver.cuLibraryGetKernel(library, b"planted")
    given = (out.data_ptr(), TOOLS.index(tool)), (ctypes.c_void_p, ctypes.c_int)
    stream = torch.cuda.current_stream().cuda_stream
    driver.cuLaunchKernel(driver.CUfunction(int(kernel)), 1, 1, 1, 64, 1, 1, 0, stream, given, 0)
    driver.cuCtxSynchronize()


def sanitizer() -> str:
    return shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def _begun(command: list[str]) -> tuple[subprocess.Popen[str], Any]:
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by who reads it
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        stdout=said,
        stderr=said,
        text=True,
        env=environment,
        cwd=HERE.parents[1],
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    return process, said


def _die_with_parent() -> None:
    """Where this script is killed without a word, as by another's time limit, no tool is left."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_without(parent: int) -> None:
    """Nor what a tool runs: it may have been started by a thread, with which a signal would come."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _kill(process: subprocess.Popen[str]) -> int:
    """End it and all it started. It is not waited for before, so that its group is nobody else's."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _told(status: int | None) -> str:
    if status is None:
        return "did not end in time and was killed"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def _last(said: str) -> str:
    """How many cases there were, and the tool's sum of errors."""
    words = ("passed", "failed", "SUMMARY")
    lines = [line.strip("= ") for line in said.splitlines() if any(word in line for word in words)]
    return ", ".join(lines[-3:]) or "it said nothing"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        threading.Thread(target=_end_without, args=(os.getppid(),), daemon=True).start()
    if sys.argv[1:2] == ["planted"]:
        planted(sys.argv[2])
    elif sys.argv[1:2] == ["cases"]:
        sys.exit(cases(sys.argv[2:]))
    else:
        sys.exit(main())
