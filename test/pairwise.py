"""Of a test with three parameters and more, cases in which every two values of two parameters meet.

What breaks a kernel or a stage is nearly always one value, or two together. Triton's interpreter takes up to
seconds for a case, so a commit runs these; a GPU and `make kernels` (EVERY_CASE=1) run all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import pytest

FOLDERS = ("kernels", "engine")
"""Whose tests are reduced."""
EVERY_CASE = os.environ.get("EVERY_CASE") == "1"

Pair = tuple[tuple[str, int], tuple[str, int]]


def covering(cases: Sequence[Mapping[str, int]]) -> list[int]:
    """Which of the cases are enough, in their order. cases: by parameter, the number of its value."""
    pairs: list[set[Pair]] = [set(combinations(sorted(case.items()), 2)) for case in cases]
    missing, chosen = set[Pair]().union(*pairs), list[int]()
    while missing:
        best = max(range(len(cases)), key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return sorted(chosen)


def enough(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The items that are run, of these folders' tests with three parameters and more, and all others."""
    needed, tests = set[pytest.Item](), dict[str, list[pytest.Function]]()
    for item in items:
        if isinstance(item, pytest.Function) and len(indices(item)) > 2:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
        else:
            needed.add(item)
    for alike in tests.values():
        needed.update(alike[number] for number in covering([indices(item) for item in alike]))
    return needed


def indices(item: pytest.Function) -> Mapping[str, int]:
    return item.callspec.indices if hasattr(item, "callspec") else {}
