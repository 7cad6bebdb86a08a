"""Options of a replica in a Ray actor: where it runs, the deadlines of its calls, and the pauses before a
restart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """Where a replica runs, and what it takes of that host. tier: the Ray resource of which it takes one,
    such as edge or cloud. gpus, cpus: in Ray's own accounting. network_s: round trip with an observation;
    None means measured at each start."""

    tier: str
    gpus: float = 0.0
    cpus: float = 0.0
    network_s: float | None = None


@dataclass(frozen=True)
class Deadlines:
    """Deadlines of each call [s]. serve: a request. ask: a question. describe: a robot. alive: calls that are
    answered at once. start: loading and measuring the engine. again, longest_again: first and longest pause
    before a lost replica is restarted; the pause starts over at `again` after a replica has lived for
    longest_again."""

    serve: float = 5.0
    ask: float = 30.0
    describe: float = 30.0
    alive: float = 2.0
    start: float = 300.0
    again: float = 0.5
    longest_again: float = 30.0


USUAL = Deadlines()


class Pauses:
    """Pauses before a replica is restarted; each is twice as long as the one before."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s, self._next_s = first_s, longest_s, first_s

    def after(self, lived_s: float) -> float:
        """Return the pause [s] after a replica that served for lived_s; 0 for one that did not start."""
        if lived_s >= self._longest_s:
            self._next_s = self._first_s
        pause_s, self._next_s = self._next_s, min(2.0 * self._next_s, self._longest_s)
        return pause_s
