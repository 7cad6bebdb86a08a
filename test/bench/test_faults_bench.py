"""The table of faults shows how often each was measured, the median, and the worst."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from faulting.cases import CASES
from faulting.measure import Row, peaks
from faulting.table import lines
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.running.environment import demo_contract

S = 1_000_000_000
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


def restarted(standing: list[tuple[float, float]]) -> Any:
    """A robot that is started again at 4 s, and has joints, at 0.3, from 4.7 s on. standing: trajectories
    that hold all joints: when they were sent, and where."""
    contract = Contract.load(demo_contract())
    joints, count = contract.joint_names, len(contract.joint_names)
    at_rest = np.full(count, 0.3), np.zeros(count)
    sent = [
        (round(at_s * S), c.topic, Trajectory(joints, np.array([round(at_s * S)]), np.full((1, count), to)))
        for at_s, to in standing
        for c in contract.controllers
    ]
    states = [(round(4.7 * S) + k * S // 100, *at_rest) for k in range(100)]
    return SimpleNamespace(
        contract=contract,
        relay=SimpleNamespace(sent=sent),
        restarted_ns=[4 * S],
        after=lambda since_ns: [state for state in states if state[0] >= since_ns],
    )


@pytest.mark.parametrize("sent_s", [4.1, 4.69])
def test_nobody_receives_what_is_sent_before_the_restarted_joints_are_there(sent_s: float) -> None:
    robot = restarted([(1.0, 0.1), (sent_s, 0.1), (5.0, 0.3)])
    assert max(peaks(robot, S, 6 * S)) == pytest.approx(1.0)


def test_a_step_after_the_restart_counts() -> None:
    assert min(peaks(restarted([(1.0, 0.1), (5.0, 0.1)]), S, 6 * S)[1:]) > 2.0
