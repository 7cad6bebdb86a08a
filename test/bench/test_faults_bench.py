"""The table of faults shows how often each was measured, the median, and the worst."""

from __future__ import annotations

from faulting.cases import CASES
from faulting.measure import Row
from faulting.table import lines

WANTED = {case.name: case.runs for case in CASES}


def cells(rows: list[Row]) -> list[str]:
    (line,) = lines({rows[0].name: rows}, WANTED)[2:]
    return [cell.strip() for cell in line.strip("|").split("|")]


def run(name: str, stop_s: float | None = 0.5, acceleration: float = 1.0, **more) -> Row:
    return Row(name, name, stop_s, 1.0, 1.0, acceleration, **more)


def test_the_worst_of_fifty_three_runs_is_seen_beside_the_median():
    rows = [run("stop-trajectory", resumed_s=0.4) for _ in range(52)]
    rows.append(run("stop-trajectory", 2.0, 18.0, resumed_s=3.0))
    _, runs, stops, speed, acceleration, resumes, person, _ = cells(rows)
    assert (runs, stops, speed, acceleration) == ("53", "0.50, 2.00", "1.00", "1.00, 18.00")
    assert resumes == "0.40, 3.00 s after it" and person == "-"


def test_fewer_runs_than_wanted_are_not_hidden_nor_are_runs_that_differ():
    rows = [run("kill-trajectory", person="~/resume") for _ in range(3)]
    rows += [
        run("kill-trajectory", None),
        run("kill-trajectory", note="does not move after it", person="~/resume"),
    ]
    _, runs, stops, *_, resumes, person, row = cells(rows)
    assert runs == "5 of 50"
    assert "0.50" in stops and "goes on (1 of 5)" in stops
    assert "no (4 of 5)" in resumes and "never stood (1 of 5)" in resumes
    assert "~/resume (4 of 5)" in person
    assert "does not move after it (1 of 5)" in row
