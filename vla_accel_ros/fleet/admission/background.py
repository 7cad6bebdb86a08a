"""Compute forecasts in a separate thread, so that a scheduler never waits for one.

A forecast takes some tenths of a second, during which a scheduler could answer nobody. A call for a forecast
that is not ready raises `Forecasting`; the caller asks again when `wake` is called. Results are cached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vla_accel_ros.fleet.admission.forecast import Forecast, Forecasting, Value, at_once

_KEPT = 1024


class Background:
    """A Forecast that computes in its own thread. wake: called, in any thread, when a result is ready. turn:
    entered while it computes, such as a lock shared with other threads that take the interpreter."""

    def __init__(
        self,
        wake: Callable[[], None],
        compute: Forecast = at_once,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._wake, self._compute, self._turn = wake, compute, turn or nullcontext()
        self._thread = ThreadPoolExecutor(1, "forecast")
        self._known: OrderedDict[tuple[object, ...], Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, function: Callable[..., Value], *arguments: object) -> Value:
        """See Forecast. Raises Forecasting while the result is being computed."""
        key = function, *arguments
        with self._lock:
            future = self._known.get(key)
            if future is None:
                future = self._known[key] = self._thread.submit(self._result, function, *arguments)
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
                future.add_done_callback(lambda _: self._wake())
            else:
                self._known.move_to_end(key)
        if not future.done():
            raise Forecasting
        result: Value = future.result()
        return result

    def _result(self, function: Callable[..., Value], *arguments: object) -> Value:
        with self._turn:
            return self._compute(function, *arguments)

    def close(self) -> None:
        """Wait for the computation that is running, cancel the others, and end the thread."""
        self._thread.shutdown(cancel_futures=True)
