"""The cases that a commit runs of a grid: every two values of two parameters meet in one."""

from __future__ import annotations

from itertools import combinations, product

from pairwise import covering


def grid(*sizes: int) -> list[dict[str, int]]:
    names = [f"parameter{number}" for number in range(len(sizes))]
    return [dict(zip(names, values)) for values in product(*map(range, sizes))]


def pairs(case: dict[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    return set(combinations(sorted(case.items()), 2))


def test_every_pair_of_values_is_met_by_few_cases() -> None:
    cases = grid(2, 2, 4, 2, 3)
    chosen = covering(cases)
    met = set().union(*(pairs(cases[number]) for number in chosen))
    assert met == set().union(*map(pairs, cases))
    assert 12 <= len(chosen) < 20 and chosen == sorted(chosen)
