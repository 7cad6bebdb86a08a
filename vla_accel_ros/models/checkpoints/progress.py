"""Progress of a load: a bar on a terminal, and a summary of size, time and rate afterwards."""

from __future__ import annotations

import time
from types import TracebackType

from tqdm import tqdm

GB = 1e9


class Meter:
    """A Progress (models.checkpoints.streaming) that shows a bar as a context manager, if stderr is a
    terminal.

    Afterwards str() gives the bytes read, the time and the rate.
    """

    def __init__(self, label: str) -> None:
        self._bar = tqdm(desc=label, unit="B", unit_scale=True, disable=None, leave=False, total=0)
        self._started = time.perf_counter()
        self.seconds = 0.0
        self.bytes = 0

    def __call__(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self.bytes)
        self.bytes, self.seconds = done, time.perf_counter() - self._started

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def __str__(self) -> str:
        rate = self.bytes / GB / self.seconds if self.seconds else 0.0
        return f"{self.bytes / GB:.2f} GB in {self.seconds:.1f} s ({rate:.2f} GB/s)"
