"""What the sensing tests are given."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rings import H, W, left_over, unique
from streams import make_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing import segment
from vla_accel_ros.sensing.cameras.ring import RingWriter


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For `-m gpu`, modules without such a test are not even imported: a plain GPU machine has no ROS and no
    mcap, which some of them need. Where all tests are asked for, all are run."""
    module = collection_path.suffix == ".py" and config.getoption("markexpr") == "gpu"
    return True if module and "mark.gpu" not in collection_path.read_text() else None


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
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of it for this test alone: what is abandoned in the common one is removed by whoever makes a
    segment there, such as a test beside this one."""
    with tempfile.TemporaryDirectory(dir=segment.FOLDER) as folder:
        monkeypatch.setattr(segment, "FOLDER", Path(folder))
        yield Path(folder)


@pytest.fixture
def writer(name: str) -> Iterator[RingWriter]:
    """Of a ring of that name, with four slots."""
    with RingWriter(name, H, W, slots=4) as writer:
        yield writer
