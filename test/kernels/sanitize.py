"""The kernels under NVIDIA's compute-sanitizer: memory, and races in shared memory (`make sanitize`).

    python test/kernels/sanitize.py

runs a few cases of every kernel test under memcheck and racecheck, side by side, and fails on any
error. Tensors have memory of their own meanwhile: in that of PyTorch's allocator a neighbour's is not out of
bounds. Kernels of PyTorch are not looked at. A tool that finds nothing must be one that could: each has to
find an error that is planted for it. The cases run once without a tool, so that all is compiled. A tool is
given CASES_S: it comes to one case of each test first, and says how many it did not come to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
CUDA = HERE.parents[1] / "vla_accel_ros" / "kernels" / "cuda"

TOOLS = ("memcheck", "racecheck")
CASES_S, LIMIT_S = 40.0, 120.0
FOUND = 99
"""Status of a tool that has found errors."""

EACH = 3
"""Cases of a test: the first, the last, and between them."""

LEFT_OUT = (
    "compil", "published", "refused", "cannot_be", "twin_is_what", "any_segments", "more_than_a_thousand",
    "stages", "tuning", "sanitize",
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


class Run(NamedTuple):
    """What a process under a tool is to be: without errors, or, where one is planted, with."""

    tool: str
    planted: bool

    @property
    def command(self) -> list[str]:
        what = ["planted", self.tool] if self.planted else ["cases", str(CASES_S)]
        kernels = [option for name in ours() for option in ("--kernel-name", name)]
        return [_sanitizer(), "--tool", self.tool, *OPTIONS, *kernels, sys.executable, __file__, *what]

    def verdict(self, status: int | None) -> str:
        """What is wrong, or nothing."""
        if status is None:
            return f"did not end within {LIMIT_S:.0f} s"
        if self.planted:
            return "" if status == FOUND else f"does not find what was planted for it (status {status})"
        return "" if status == 0 else "found errors" if status == FOUND else f"ended with status {status}"


def ours() -> list[str]:
    """Filters of the tool for the kernels of this package: Triton's by their underscore, CUDA's by name."""
    text = "\n".join(file.read_text() for file in sorted(CUDA.glob("*.cu")))
    names = re.findall(r"__global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(", text)
    return ["regex=^_[a-z]", *(f"kernel_name={name}" for name in (*names, "planted"))]


def main() -> int:
    """Check; prints a line for each tool, and what it said where that is of interest."""
    import torch

    if not torch.cuda.is_available():
        print("make sanitize needs a CUDA device: torch sees none", file=sys.stderr)
        return 2
    if not Path(_sanitizer()).is_file():
        print("compute-sanitizer is not installed: it comes with NVIDIA's CUDA toolkit", file=sys.stderr)
        return 2
    begin = time.monotonic()
    status, said = _ended(_begun([sys.executable, __file__, "cases", str(LIMIT_S)]), begin)
    print(f"without a tool: {_last(said)} ({time.monotonic() - begin:.0f} s)", flush=True)
    if status != 0:
        print(said)
        return 1
    begin, wrong = time.monotonic(), 0
    runs = [Run(tool, planted) for planted in (True, False) for tool in TOOLS]
    for run, process in [(run, _begun(run.command)) for run in runs]:
        status, said = _ended(process, begin)
        verdict = run.verdict(status)
        told = verdict or ("finds what was planted" if run.planted else _last(said))
        print(f"{run.tool}: {told} ({time.monotonic() - begin:.0f} s)", flush=True)
        if verdict:
            wrong += 1
            print("\n".join(said.splitlines()[:120]), flush=True)
    return int(wrong > 0)


def cases(limit_s: float) -> int:
    """The tests, a few cases of each, as many as there is time for."""
    import pytest

    given = ["-q", "-p", "no:cacheprovider", "--no-header", "-k", f"not ({' or '.join(LEFT_OUT)})", str(HERE)]
    return int(pytest.main(given, plugins=[Few(limit_s)]))


class Few:
    """A plugin of pytest that keeps EACH cases of a test, the first of each first, and runs those it has time
    for."""

    def __init__(self, limit_s: float) -> None:
        self._end, self._left = time.monotonic() + limit_s, 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        found: dict[str, list[Any]] = {}
        for item in items:
            found.setdefault(item.nodeid.split("[")[0], []).append(item)
        kept = [enumerate(spread(alike)) for alike in found.values()]
        turns = sorted((pair for alike in kept for pair in alike), key=lambda pair: pair[0])
        items[:] = [item for _, item in turns]

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool | None:
        if time.monotonic() < self._end:
            return None
        self._left += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._left:
            terminalreporter.line(f"time was up: {self._left} cases were not run")


def spread(alike: Sequence[Any]) -> list[Any]:
    """EACH of them, from the first to the last."""
    if len(alike) <= EACH:
        return list(alike)
    return [alike[index * (len(alike) - 1) // (EACH - 1)] for index in range(EACH)]


def planted(tool: str) -> None:
    """Launch a kernel with an error of the tool's kind."""
    import ctypes

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


def _sanitizer() -> str:
    return shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def _begun(command: list[str]) -> tuple[subprocess.Popen[str], Any]:
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by who reads it
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.Popen(command, stdout=said, stderr=said, text=True, env=environment), said


def _ended(begun: tuple[subprocess.Popen[str], Any], begin: float) -> tuple[int | None, str]:
    """Its status, None if it is stopped as time is up, and all it said."""
    process, said = begun
    try:
        status: int | None = process.wait(max(1.0, begin + LIMIT_S - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        status = None
    with said:
        said.seek(0)
        return status, said.read()


def _last(said: str) -> str:
    """How many cases, of which none is left out in silence, and the tool's sum of errors."""
    words = ("passed", "failed", "time was up", "SUMMARY")
    lines = [line.strip("= ") for line in said.splitlines() if any(word in line for word in words)]
    return ", ".join(lines[-3:]) or "it said nothing"


if __name__ == "__main__":
    if sys.argv[1:2] == ["planted"]:
        planted(sys.argv[2])
    elif sys.argv[1:2] == ["cases"]:
        sys.exit(cases(float(sys.argv[2])))
    else:
        sys.exit(main())
