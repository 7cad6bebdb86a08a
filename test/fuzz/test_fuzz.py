"""Whatever bytes and texts come from outside: one sentence of refusal, or the right result, and nothing else.

FUZZ_CASES sets how many cases there are over all targets, 10,000 unless told otherwise; `make fuzz` runs a
hundred times as many. The shared-memory ring has its own (test/sensing/cameras/test_ring_fuzz.py).
"""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
from campaign import run
from fuzz_targets import SHARES, TARGETS

CASES = int(os.environ.get("FUZZ_CASES", 10_000))
SEED = int(os.environ.get("FUZZ_SEED", 0))


@pytest.mark.parametrize("name", TARGETS)
def test_foreign_input_is_refused_in_a_sentence_or_taken_rightly(name):
    cases = range(round(CASES * SHARES[name]))
    result = run(name, TARGETS[name], cases, SEED)
    assert result.failure is None, str(result.failure)
    assert sum(result.outcomes.values()) == len(cases)
    taken = sum(
        n for outcome, n in result.outcomes.items() if outcome.endswith(("picture", "decoded", "loaded"))
    )
    assert 0.05 < taken / len(cases) < 0.95, f"the cases are too harmless or too harmful: {result.outcomes}"


class Crashes:
    """Ends by a signal in its third case, as broken native code would."""

    def __call__(self, chance: random.Random) -> str:
        self.cases = getattr(self, "cases", 0) + 1
        if self.cases == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        return "well"


class Hangs:
    """Never comes back from its second case."""

    def __call__(self, chance: random.Random) -> str:
        self.cases = getattr(self, "cases", 0) + 1
        while self.cases == 2:
            signal.pause()
        return "well"


class Hoards:
    """Believes a header that claims ten gigabytes."""

    def __call__(self, chance: random.Random) -> str:
        return str(len(np.zeros(10 << 30, np.uint8)))


@pytest.mark.parametrize(
    ("make", "case", "how"),
    [
        (Crashes, 2, f"ended by signal {int(signal.SIGSEGV)}"),
        (Hangs, 1, "has not ended for 2 s"),
        (Hoards, 0, "MemoryError"),
    ],
)
def test_a_crash_a_hang_and_a_hoard_are_found_and_named(make, case, how):
    failure = run("broken", make, range(5), SEED, hang_s=2.0).failure
    assert (failure.case, failure.seed) == (case, SEED)
    assert how in failure.how
    assert f"--seed {SEED} --case {case}" in str(failure)
