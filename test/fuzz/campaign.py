"""Runs many cases of a target in a child process, so that a crash of native code or a hang is a failure too.

A target is a class of fuzz_targets: made once in the child, then called with a random.Random for each case;
it returns in a word what became of the case, and raises for what must not be. A case depends on nothing but
(seed, target, number), so that one that failed can be run again alone. What libraries print is swallowed,
and the memory is bounded.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized

# Beyond what the child has when it begins: a header that lies must not be given memory.
MEMORY = 1 << 30
HANG_S = 60.0
LOOK_S = 0.5

Target = Callable[[random.Random], str]


@dataclass(frozen=True)
class Failure:
    """What must not be. case: its number; how: a traceback, or how the process ended."""

    target: str
    seed: int
    case: int
    how: str

    def __str__(self) -> str:
        again = f"python test/fuzz --target {self.target} --seed {self.seed} --case {self.case}"
        return f"{self.target}, case {self.case} of seed {self.seed} ({again}):\n{self.how}"


@dataclass(frozen=True)
class Result:
    """outcomes: how often each. seconds: of all cases. failure: the first one, after which nothing ran."""

    outcomes: Counter[str]
    seconds: float
    failure: Failure | None


def chance_of(target: str, seed: int, case: int) -> random.Random:
    """All that a case depends on."""
    return random.Random(f"{seed}/{target}/{case}")


def run(name: str, make: Callable[[], Target], cases: range, seed: int, hang_s: float = HANG_S) -> Result:
    """Run these cases of a target in a child process. make: must be importable by the child."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reached = context.Value("q", cases.start - 1)  # the child has not begun
    child = context.Process(target=_child, args=(name, make, cases, seed, reached, theirs), daemon=True)
    begun = time.monotonic()
    child.start()
    theirs.close()
    try:
        outcome = _watch(child, ours, reached, cases.start, hang_s)
    finally:
        child.kill()
        child.join()
    seconds = time.monotonic() - begun
    if isinstance(outcome, Counter):
        return Result(outcome, seconds, None)
    return Result(Counter(), seconds, Failure(name, seed, max(reached.value, cases.start), outcome))


def _watch(
    child: BaseProcess, ours: Connection, reached: Synchronized[int], first: int, hang_s: float
) -> Counter[str] | str:
    """What the child says at last, or how it ended without a word. A start on a busy machine is no hang."""
    case, since = reached.value, time.monotonic()
    while not ours.poll(LOOK_S):
        if reached.value != case:
            case, since = reached.value, time.monotonic()
        elif case >= first and time.monotonic() - since > hang_s:
            return f"it has not ended for {hang_s:g} s"
    try:
        return ours.recv()
    except EOFError:
        child.join()
        code = child.exitcode
        return (
            f"the process ended with status {code}"
            if code is None or code >= 0
            else f"ended by signal {-code}"
        )


def _child(
    name: str,
    make: Callable[[], Target],
    cases: range,
    seed: int,
    reached: Synchronized[int],
    said: Connection,
) -> None:
    target = make()
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    faulthandler.disable()
    _limit_memory()
    outcomes: Counter[str] = Counter()
    try:
        for case in cases:
            reached.value = case
            outcomes[target(chance_of(name, seed, case))] += 1
    except BaseException:
        said.send(traceback.format_exc())
    else:
        said.send(outcomes)


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
