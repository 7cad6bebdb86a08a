"""Whatever bytes and texts come from outside: one sentence of refusal, or the right result, and nothing else.

FUZZ_CASES sets how many cases there are over all targets, 10,000 unless told otherwise; `make fuzz` runs a
hundred times as many. The shared-memory ring has its own (test/sensing/cameras/test_ring_fuzz.py).
"""

from __future__ import annotations

import os

import pytest
from campaign import run
from fuzz_targets import SHARES, TARGETS

CASES = int(os.environ.get("FUZZ_CASES", 10_000))
SEED = int(os.environ.get("FUZZ_SEED", 0))


@pytest.mark.parametrize("name", TARGETS)
def test_foreign_input_is_refused_in_a_sentence_or_taken_rightly(name):
    cases = range(round(CASES * SHARES[name]))
    outcomes = run(name, TARGETS[name], cases, SEED)
    assert sum(outcomes.values()) == len(cases)
    taken = sum(n for outcome, n in outcomes.items() if outcome.endswith(("picture", "decoded", "loaded")))
    assert 0.05 < taken / len(cases) < 0.95, f"the cases are too harmless or too harmful: {outcomes}"
