"""bench/block_shapes.py without a GPU: its file compared again, and constants fitted to a part of it."""

from __future__ import annotations

import json
from pathlib import Path

import block_shapes
import pytest
from shaping.fit import fitted
from shaping.measured import load

from full_size.command import RESULTS
from vla_accel_ros.kernels.block_shapes import ROWS


def test_a_file_is_compared_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((RESULTS / "block_shapes.json").read_text())
    wanted, document["compared"] = document["compared"], []
    file = tmp_path / "block_shapes.json"
    file.write_text(json.dumps(document))
    assert block_shapes.main(["--again", str(file)]) == 0
    found = json.loads(file.read_text())["compared"]
    assert capsys.readouterr().out.count("\n") == 2 + len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for way in ("chosen", "by_count", "table"):  # processors differ in a mean's last bit
            assert one.pop(way) == pytest.approx(other.pop(way), rel=1e-9)
        assert one == other


def test_constants_are_fitted_to_what_was_measured() -> None:
    """To launches that take three times as long: all that a search may change is made slower."""
    _, gpu, cases = load(RESULTS / "block_shapes.json")
    few = [case for case in cases if "encode" in case.name and case.processors == 132][:6]
    slower = [case._replace(times={config: 3 * us for config, us in case.times.items()}) for case in few]
    found, error = fitted("ROWS", slower, gpu, 80, 0)
    assert error < fitted("ROWS", slower, gpu, 0, 0)[1]
    assert (
        found.start_us + found.block_us + found.latency_us > ROWS.start_us + ROWS.block_us + ROWS.latency_us
    )


def test_it_needs_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert block_shapes.main([]) == 1
    assert capsys.readouterr().err.endswith("timed on a GPU, and torch sees no CUDA device here.\n")


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"gpu": {}, "cases": []}', '{"gpu": {"processors": 1}, "cases": [1]}']
)
@pytest.mark.parametrize("option", ["--again", "--fit"])
def test_a_file_that_is_none_is_refused_and_left_as_it_is(
    text: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    assert block_shapes.main([option, str(file)]) != 0
    assert "mine.json is no file of bench/block_shapes.py" in capsys.readouterr().err
    assert file.read_text() == text
