"""A grid may be measured in several runs: the file holds what each brought, and says what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pipeline
import pytest

from grids.runs import Budget, Part, Results
from grids.shares import Group

CELLS = ("a", "b", "c")


def silent(text: str) -> None:
    pass


class Clock:
    """Moves by one whenever a cell is measured."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def part(clock: Clock, measured: list[str], broken: Iterable[str] = ()) -> Part:
    """A part of three cells that notes what is measured."""

    def measure(cell: str) -> dict[str, Any]:
        clock.now_s += 1.0
        if cell in broken:
            raise RuntimeError(f"{cell} is broken")
        measured.append(cell)
        return {"rows": [{"figure": cell.upper()}], "last": cell}

    def make() -> Callable[[str], dict[str, Any]]:
        measured.append("set-up")
        return measure

    return Part({cell: cell for cell in CELLS}, make, {"frames": 3}, [Group((cell,), 1.0) for cell in CELLS])


def test_a_run_ends_between_two_cells_and_the_next_goes_on(tmp_path: Path) -> None:
    file, clock, measured = tmp_path / "figures.json", Clock(), list[str]()
    first = Results(file, "full", "bfloat16", resume=False)
    first.measure("grid", part(clock, measured), Budget(2.0, clock), silent)
    assert measured == ["set-up", "a", "b"]
    written = json.loads(file.read_text())["grid"]
    assert written["not_measured"] == ["c"] and written["runs"][0]["cells"] == ["a", "b"]

    Results(file, "full", "bfloat16", resume=True).measure(
        "grid", part(clock, measured), Budget(None), silent
    )
    assert measured == ["set-up", "a", "b", "set-up", "c"]
    whole = json.loads(file.read_text())["grid"]
    assert whole["not_measured"] == [] and whole["last"] == "c"
    assert whole["rows"] == [{"figure": cell.upper(), "cell": cell} for cell in CELLS]
    assert [run["cells"] for run in whole["runs"]] == [["a", "b"], ["c"]]


def test_nothing_is_made_where_nothing_is_missing_or_no_time_is_left(tmp_path: Path) -> None:
    file, clock, measured = tmp_path / "figures.json", Clock(), list[str]()
    Results(file, "full", "bfloat16", False).measure("grid", part(clock, measured), Budget(None), silent)
    measured.clear()
    Results(file, "full", "bfloat16", True).measure("grid", part(clock, measured), Budget(None), silent)
    spent = Budget(0.0, clock)
    found = Results(None, "full", "bfloat16", False).measure("grid", part(clock, measured), spent, silent)
    assert measured == [] and found["not_measured"] == [*CELLS] and found["runs"] == []


@pytest.mark.parametrize("plan, dtype, resume", [("quick", "bfloat16", True), ("full", "bfloat16", False)])
def test_figures_of_another_plan_or_of_an_earlier_run_are_not_mixed_in(
    tmp_path: Path, plan: str, dtype: str, resume: bool
) -> None:
    file, clock, measured = tmp_path / "figures.json", Clock(), list[str]()
    Results(file, plan, dtype, False).measure("grid", part(clock, measured), Budget(None), silent)
    again = Results(file, "full", "bfloat16", resume)
    again.measure("grid", part(clock, measured), Budget(None), silent)
    whole = json.loads(file.read_text())["grid"]
    assert len(whole["rows"]) == len(CELLS) and [run["plan"] for run in whole["runs"]] == ["full"]


def test_other_parts_stay(tmp_path: Path) -> None:
    file, clock = tmp_path / "figures.json", Clock()
    Results(file, "quick", "bfloat16", False).measure("one", part(clock, []), Budget(None), silent)
    Results(file, "full", "bfloat16", False).measure("two", part(clock, []), Budget(None), silent)
    document = json.loads(file.read_text())
    assert [document[name]["runs"][0]["plan"] for name in ("one", "two")] == ["quick", "full"]


def test_a_cell_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    file, clock, measured = tmp_path / "figures.json", Clock(), list[str]()
    results = Results(file, "full", "bfloat16", False)
    found = results.measure("grid", part(clock, measured, broken="b"), Budget(None), silent)
    assert found["failed"] == {"b": "RuntimeError: b is broken"} and found["not_measured"] == ["b"]
    assert measured == ["set-up", "a", "c"]
    again = Results(file, "full", "bfloat16", True)
    found = again.measure("grid", part(clock, measured), Budget(None), silent)
    assert "failed" not in found and found["not_measured"] == []


@pytest.mark.parametrize("text", ["[]", "{", '{"grid": {"rows": []}}', '{"plan": "quick"}'])
def test_a_file_of_something_else_is_not_written_over(tmp_path: Path, text: str) -> None:
    file = tmp_path / "figures.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="is not a file of figures of this bench"):
        Results(file, "full", "bfloat16", resume=False)
    assert file.read_text() == text


def test_to_resume_there_must_be_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["--small", "--resume"]) == 2
    assert "give it by --json FILE" in capsys.readouterr().err
