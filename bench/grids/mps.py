"""OxyGen's "Parallel" baseline: action and text as two processes that share a GPU, under NVIDIA MPS or
time-sliced by the driver.

Three ways to serve the same two processes (apart.py), each with its own model: one task after the other; both
at once frame by frame (a frame is done when both are); and both as fast as each can. With MPS, kernels of
both run on the device together; without it they take turns. The measurement starts its own MPS daemon, with
its own folder for pipes, and ends it. Without MPS the row says so.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from full_size.processes import environment_of_bench
from grids.shares import Group

TASKS = ("action", "text")

CONTROL = "nvidia-cuda-mps-control"

DAEMON_S, PROCESS_S = 30.0, 120.0
"""Timeouts: for the daemon, and for a process, which first makes a model and compiles kernels."""


@dataclass(frozen=True)
class Grid:
    """Texts of N tokens beside S denoising steps; frames of each way, and seconds of those that run free."""

    steps: int
    tokens: Sequence[int]
    frames: int
    seconds: float

    def cells(self) -> dict[str, bool]:
        """By name: whether MPS is used."""
        return {"without MPS": False, "with MPS": True}

    def groups(self) -> list[Group]:
        """Both in one group, because they are compared with each other."""
        return [Group(tuple(self.cells()), 2 * (25.0 + 4.0 * len(self.tokens)))]

    def counts(self) -> dict[str, Any]:
        """Sample sizes, for the reader of the figures."""
        return {"frames": self.frames, "seconds": self.seconds}


class Process:
    """A process of apart.py. Raises RuntimeError, with its last output, if it ends by itself."""

    def __init__(self, task: str, plan: str, grid: Grid, environment: Mapping[str, str]) -> None:
        self.task = task
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        arguments = [task, plan, str(grid.steps), str(max(grid.tokens))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grids.apart", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**environment_of_bench(), **environment},
        )

    def begin(self, line: str) -> None:
        """Send a command; `end` waits for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._broken() from None

    def end(self) -> dict[str, Any]:
        """The answer."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PROCESS_S)[0]:
            raise RuntimeError(f"the {self.task} process has not answered within {PROCESS_S:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._broken()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def do(self, line: str) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.begin(line)
        return self.end()

    def _broken(self) -> RuntimeError:
        self._process.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]
        return RuntimeError(f"the {self.task} process ended with status {self._process.returncode}: {last}")

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()
        self._errors.close()


class Daemon(NamedTuple):
    """The MPS daemon: environment of its clients, and how many processes it serves."""

    environment: dict[str, str]

    def clients(self) -> int:
        """Raises RuntimeError if it does not answer."""
        servers = _told(self.environment, "get_server_list").split()
        return sum(len(_told(self.environment, f"get_client_list {one}").split()) for one in servers)


@contextmanager
def daemon(visible: dict[str, str]) -> Iterator[Daemon]:
    """Our own MPS daemon during the block. visible: environment that names its GPU.

    Raises RuntimeError if it cannot run.
    """
    if shutil.which(CONTROL) is None:
        raise RuntimeError(f"{CONTROL} is not installed here, so there is no MPS to measure")
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": "pipe", "CUDA_MPS_LOG_DIRECTORY": "log"}
        for place in places.values():
            Path(folder, place).mkdir()
        environment = {name: str(Path(folder, place)) for name, place in places.items()} | visible
        said = Path(folder, "said")
        with said.open("w") as output:  # not a pipe, which a daemon would keep open
            command, told = [CONTROL, "-d"], {**os.environ, **environment}
            begun = subprocess.run(command, env=told, stdout=output, stderr=output, timeout=DAEMON_S)
        if begun.returncode:
            last = (said.read_text().strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(f"{CONTROL} does not start here (status {begun.returncode}): {last}")
        try:
            yield Daemon(environment)
        finally:
            _told(environment, "quit")


def _told(environment: Mapping[str, str], command: str) -> str:
    """The daemon's answer to a command."""
    done = subprocess.run(
        [CONTROL], input=command + "\n", env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=DAEMON_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{CONTROL} refuses '{command}' (status {done.returncode}): {done.stderr.strip()}")
    return done.stdout


def measure(plan: str, grid: Grid, with_mps: bool, gpu: str | None = None) -> dict[str, Any]:
    """A row for each N and way to serve both; without MPS a row that gives the reason under `none`.

    plan: name of the sizes, for the processes. gpu: its UUID, because a daemon renumbers the GPUs it sees.
    Raises RuntimeError if processes fail without MPS.
    """
    system = "two processes, MPS" if with_mps else "two processes"
    visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    with ExitStack() as stack:
        try:
            served = stack.enter_context(daemon(visible)) if with_mps else None
            environment = visible if served is None else served.environment
            both = [stack.enter_context(Process(task, plan, grid, environment)) for task in TASKS]
            for process in both:
                process.end()  # it is ready
            clients = {} if served is None else {"mps_clients": served.clients()}
            if clients.get("mps_clients", len(both)) < len(both):
                raise RuntimeError(f"MPS serves {clients['mps_clients']} of the {len(both)} processes")
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            if not with_mps:
                raise
            return {"rows": [{"system": system, "none": str(error)}]}
        rows = [row for tokens in grid.tokens for row in _rows(both, grid, tokens)]
    return {"rows": [{"system": system, **row, **clients} for row in rows]}


def _rows(both: Sequence[Process], grid: Grid, tokens: int) -> Iterator[dict[str, Any]]:
    action, text = both
    found = {"steps": grid.steps, "tokens": tokens}
    in_turn = _frames([[action], [text]], grid.frames, tokens)
    at_once = _frames([[action, text]], grid.frames, tokens)
    for way, row in (("one after the other", in_turn), ("both at once", at_once)):
        yield {**found, "way": way, **row, "over_in_turn": round(row["frames_s"] / in_turn["frames_s"], 2)}
    for process in both:
        process.begin(f"run {grid.seconds} {tokens}")
    acted, said = (process.end() for process in both)
    texts_s = said["frames"] / said["elapsed_s"]
    yield {
        **found,
        "way": "each as fast as it can",
        "frames": acted["frames"],
        "frames_s": round(acted["frames"] / acted["elapsed_s"], 2),
        "tokens_s": round(tokens * texts_s, 1),
        **_shared_figures(acted, said),
        "energy_mj": None,  # a frame is not the same work here
    }


def _frames(turns: Sequence[Sequence[Process]], frames: int, tokens: int) -> dict[str, Any]:
    """Frames whose tasks are done turn by turn, those of one turn at once."""
    processes = [process for turn in turns for process in turn]
    for process in processes:
        process.do("open")
    begin = time.perf_counter()
    for _ in range(frames):
        for turn in turns:
            for process in turn:
                process.begin(f"frame {tokens}")
            for process in turn:
                process.end()
    elapsed_s = time.perf_counter() - begin
    acted, said = (process.do("close") for process in processes)
    return {
        "frames": frames,
        "frames_s": round(frames / elapsed_s, 2),
        "tokens_s": round(tokens * frames / elapsed_s, 1),
        **_shared_figures(acted, said),
    }


def _shared_figures(acted: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Ages are of actions, from the frame; memory is both processes'; energy the device's for each frame."""
    return {
        "age_p50_ms": acted["age_p50_ms"],
        "age_p99_ms": acted["age_p99_ms"],
        "memory_gb": round(acted["memory_gb"] + said["memory_gb"], 3),
        "power_w": acted["power_w"],
        "energy_mj": acted["energy_mj"],
    }
