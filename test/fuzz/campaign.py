"""Runs many cases of a target, in bounded memory: a header that lies must not be given gigabytes.

A target is a class of fuzz_targets: made once, then called with a random.Random for each case; it returns in
a word what became of the case, and raises for what must not be. A case depends on nothing but (seed, target,
number), so that one that failed can be run again alone. A crash of native code ends the process, and a hang
is ended by the test's timeout.
"""

from __future__ import annotations

import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MEMORY = 1 << 30
"""Beyond what the process has when it begins."""

Target = Callable[[random.Random], str]


def run(name: str, make: Callable[[], Target], cases: range, seed: int) -> Counter[str]:
    """How often each outcome was. Raises AssertionError for a case of what must not be, with its command."""
    target, outcomes = make(), Counter[str]()
    with bounded_memory():
        for case in cases:
            try:
                outcomes[target(random.Random(f"{seed}/{name}/{case}"))] += 1
            except Exception as error:
                again = f"python test/fuzz --target {name} --seed {seed} --case {case}"
                raise AssertionError(f"{again}: {error!r}") from error
    return outcomes


@contextmanager
def bounded_memory() -> Iterator[None]:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
