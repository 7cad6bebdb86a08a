"""The list of mutations fits the package, and a few of them, the quick ones, are tried every time."""

from __future__ import annotations

import pytest
from mutations import MUTATIONS, PACKAGE, ROOT, Mutation, notices

QUICK = ("sign of the Euler step", "age of an input", "limits")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_what_it_breaks_stands_in_the_package_and_its_tests_are_there(mutation: Mutation) -> None:
    assert mutation.source(ROOT / PACKAGE) and mutation.paths() and mutation.old != mutation.new


@pytest.mark.parametrize("name", QUICK)
def test_it_is_noticed(name: str) -> None:
    (mutation,) = (candidate for candidate in MUTATIONS if candidate.name == name)
    assert notices(mutation)


def test_what_changes_nothing_is_not_noticed() -> None:
    (mutation,) = (candidate for candidate in MUTATIONS if candidate.name == "age of an input")
    assert not notices(Mutation("nothing", mutation.old, f"{mutation.old} + 0.0", mutation.tests))
