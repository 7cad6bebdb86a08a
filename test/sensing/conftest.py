"""What the sensing tests are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rings import H, W, left_over, unique
from streams import make_contract

from vla_accel_ros.sensing.contract import Contract
from vla_accel_ros.sensing.ring import RingWriter


@pytest.fixture
def contract() -> Contract:
    """The simulated arm's contract."""
    return make_contract()


@pytest.fixture
def name() -> Iterator[str]:
    """A ring's, of which nothing may be left in the end."""
    name = unique("ring")
    yield name
    assert left_over(name) == []


@pytest.fixture
def writer(name: str) -> Iterator[RingWriter]:
    """Of a ring of that name, with four slots."""
    with RingWriter(name, H, W, slots=4) as writer:
        yield writer
