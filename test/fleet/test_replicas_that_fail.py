"""A replica in a Ray actor that does not start, beside one that does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest
from ray_engines import Failing

pytest.importorskip("ray")

from vla_accel_ros.fleet.replicas.ray_cluster import Deadlines
from vla_accel_ros.nodes.fleet.engines import Making, RayEngines

HERE = Path(__file__).resolve().parent
PATIENT = Deadlines(start=240.0, again=0.1)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), str(HERE)])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_replica_that_does_not_start_is_told_with_its_own_error_and_the_others_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engines = RayEngines(cast(Making, Failing(tmp_path, 1)), "edge:1 cloud:1", deadlines=PATIENT)
    try:
        assert "replica edge0" in caplog.text and "attempt 0: CUDA out of memory" in caplog.text
        edge, cloud = engines.replicas
        assert cloud.room() == cloud.limit == 2 and engines.updates == 4
        with edge._changed:  # it is tried again
            assert edge._changed.wait_for(lambda: edge._serving, 120.0)
    finally:
        engines.close()


def test_if_no_replica_starts_the_error_of_each_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refusal:
        RayEngines(cast(Making, Failing(tmp_path, 99)), "edge:1 cloud:1", deadlines=PATIENT)
    for name in ("edge0", "cloud0"):
        assert f"replica {name}: " in str(refusal.value)
    assert str(refusal.value).count("CUDA out of memory") == 2
