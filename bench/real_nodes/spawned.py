"""Spawned processes (CUDA does not survive a fork) that report when they are ready, and return a log."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from types import TracebackType
from typing import Any

READY_S, LOG_S = 240.0, 30.0
"""Timeouts: to get ready (make a model, compile and capture), and to end."""


class Port:
    """A process's side of the pipe to the parent."""

    def __init__(self, stop: Event, pipe: Connection) -> None:
        self._stop, self._pipe = stop, pipe

    def ready(self, **what: Any) -> None:
        """Report that everything is made."""
        self._pipe.send(what)

    @property
    def running(self) -> bool:
        """Whether to go on."""
        return not self._stop.is_set()

    def ticks(self, rate_hz: float) -> Iterator[int]:
        """0, 1, ... at a rate, until the end; late ticks do not hurry the next ones."""
        period_s, due_s, number = 1.0 / rate_hz, time.monotonic(), 0
        while self.running:
            yield number
            number += 1
            due_s = max(due_s + period_s, time.monotonic() - period_s)
            time.sleep(max(0.0, due_s - time.monotonic()))


Work = Callable[..., dict[str, Any]]
"""Of a process: takes its port and what it was given, and returns its log."""


class Processes:
    """Processes by name, during the block. All of them end with it, however it ends."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self._stop = self.context.Event()
        self._pipes: dict[str, Connection] = {}
        self._unready: list[str] = []
        self._processes: dict[str, SpawnProcess] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for process in self._processes.values():
            process.join(LOG_S if kind is None else 1.0)
            if process.is_alive():
                process.kill()
                process.join()

    def start(self, name: str, work: Work, *given: Any) -> None:
        """Begin one."""
        ours, child_end = self.context.Pipe()
        process = self.context.Process(target=_run, args=(work, self._stop, child_end, given), name=name)
        process.start()
        child_end.close()
        self._pipes[name], self._processes[name] = ours, process
        self._unready.append(name)

    @property
    def pids(self) -> dict[str, int]:
        """By name."""
        return {name: process.pid for name, process in self._processes.items() if process.pid is not None}

    def ready(self) -> dict[str, dict[str, Any]]:
        """What each that was started since says when it is ready. Raises RuntimeError for one that fails,
        TimeoutError for a slow one."""
        results = {name: self._told(name, READY_S) for name in self._unready}
        self._unready.clear()
        return results

    def end(self) -> dict[str, dict[str, Any]]:
        """The log of each. Raises as `ready` does."""
        self._stop.set()
        return {name: self._told(name, LOG_S) for name in self._pipes}

    def _told(self, name: str, patience_s: float) -> dict[str, Any]:
        if not self._pipes[name].poll(patience_s):
            raise TimeoutError(f"process {name} said nothing for {patience_s:g} s: look at its output")
        try:
            answer = self._pipes[name].recv()
        except EOFError:
            raise RuntimeError(f"process {name} ended: look at its output") from None
        if isinstance(answer, str):
            raise RuntimeError(f"process {name} failed: {answer}")
        return dict(answer)


def _run(work: Work, stop: Event, pipe: Connection, given: tuple[Any, ...]) -> None:
    """The whole of a process."""
    try:
        pipe.send(work(Port(stop, pipe), *given))
    except Exception as error:
        pipe.send("".join(traceback.format_exception(error)))
