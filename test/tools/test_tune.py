"""vla tune without a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from vla_accel_ros.engine.lanes.partitions import CannotDivide
from vla_accel_ros.kernels.tuning import Table
from vla_accel_ros.tools.cli import main


def test_without_a_gpu_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["tune"]) == 1
    assert capsys.readouterr().err == (
        "vla tune: kernels are tuned on a GPU, and torch sees no CUDA device here.\n"
    )


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int | None]:
    """A GPU on which tuning takes no time; for how many multiprocessors it was done."""
    found: list[int | None] = []

    def tune(
        config: object, device: object, batches: object, say: object, ways: object, sms: int | None
    ) -> Table:
        found.append(sms)
        return Table(sms or 132)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("vla_accel_ros.kernels.ops.ops_for", lambda device: None)
    monkeypatch.setattr("vla_accel_ros.tools.tune.choose.tune", tune)
    monkeypatch.setattr("vla_accel_ros.tools.tune.command.provenance", dict)
    monkeypatch.setattr(
        "vla_accel_ros.kernels.tuning.cache_file", lambda device, sms: tmp_path / f"{sms}.json"
    )
    monkeypatch.setattr("torch.cuda.stream", lambda stream: nullcontext())
    return found


def test_a_table_for_a_partition_is_kept_under_the_number_that_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tuned: list[int | None]
) -> None:
    part = SimpleNamespace(sms=40, streams=(None,))
    monkeypatch.setattr("vla_accel_ros.engine.lanes.partitions.of_size", lambda device, count: part)
    assert main(["tune", "--sms", "33"]) == main(["tune"]) == 0
    assert tuned == [40, None]
    assert {file.name for file in tmp_path.iterdir()} == {"40.json", "None.json"}


def test_a_gpu_that_cannot_be_divided_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tuned: list[int | None]
) -> None:
    def of_size(device: object, count: int) -> None:
        raise CannotDivide("this GPU driver has no cuGreenCtxCreate (one of CUDA 12.4 or newer has it)")

    monkeypatch.setattr("vla_accel_ros.engine.lanes.partitions.of_size", of_size)
    assert main(["tune", "--sms", "32"]) == 1
    assert capsys.readouterr().err.startswith("vla tune: this GPU driver has no cuGreenCtxCreate")
    assert tuned == []
