"""Where a replica in a Ray actor runs, how long each call of it may take, and when it is started again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """Where a replica runs, and what of that host it takes. tier: the Ray resource of which it takes one,
    such as edge or cloud; gpus, cpus: for Ray's own accounts. network_s: to it and back with an observation;
    None = measured at each start."""

    tier: str
    gpus: float = 0.0
    cpus: float = 0.0
    network_s: float | None = None


@dataclass(frozen=True)
class Deadlines:
    """Of each call [s]. serve: of a request; ask: of a question; describe: of a robot; alive: of what is
    answered at once; start: of the engine, loaded and measured. again, longest_again: the pause before a
    replica that was lost is started again, at first and at most; it is over when one has lived for
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
    """How long to wait before a replica is started again: twice as long each time."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s, self._next_s = first_s, longest_s, first_s

    def after(self, lived_s: float) -> float:
        """It was lost after it had served for so long; 0 for one that did not start."""
        if lived_s >= self._longest_s:
            self._next_s = self._first_s
        pause_s, self._next_s = self._next_s, min(2.0 * self._next_s, self._longest_s)
        return pause_s
