"""What the scheduler asks of whoever computes micro-batches: engine.runner.runner in an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vla_accel_ros.engine.kv.prefixes import Prefixes
from vla_accel_ros.engine.request import MicroBatch, Request


class Runner(Protocol):
    """Computes micro-batches. While `run` computes in another thread what is not captured, the other methods
    may be called for requests of other lanes, and `run` for captured work of those."""

    prefixes: Prefixes

    def first_stage(self, request: Request) -> str:
        """The first stage of a request. Raises ValueError for a request that the policy cannot compute."""

    def kind(self, request: Request) -> str:
        """The request's kind, see `Request.kind`; fixed from its submission on."""

    def room(self, request: Request) -> bool:
        """Whether there is room to begin the request."""

    def begin(self, request: Request) -> None:
        """Begin a request whose prefix is held and whose state is known."""

    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        """Advance the requests: ends those that are finished (`Request.finish`) or that failed
        (`Request.fail`). An exception is the error of all of them.

        If the device has yet to compute that, it sets the status of the requests that cannot advance further
        until then to LAUNCHED, and returns a function that waits for the device and then sets the results.
        The loop may launch its next micro-batch before it calls that function, whose exception is the error
        of all requests, too.
        """

    def is_captured(self, batch: MicroBatch) -> bool:
        """Whether `run` only launches the micro-batch, which takes the host a fraction of a millisecond."""

    def drop(self, request: Request) -> None:
        """Free what a finished, failed or cancelled request holds besides its prefix."""

    def idle(self) -> None:
        """A lane has nothing to launch: prepare briefly what the next requests will need."""
