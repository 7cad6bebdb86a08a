"""Two robots and their scheduler, killed one after another over real DDS and a network that spoils messages.

What controllers receive keeps every limit and is of nobody else, everybody goes on, nobody stands without a
word once all that it needs is ready, and nothing leaks. How long it takes until arms move depends on the
machine and is not asserted; bench/fleet_chaos.py kills 200 times, and bounds that too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from running import NodeProcess, node_environment, sweep

from chaos import leaks, run
from chaos.fleet import Fleet
from chaos.run import INFERENCE, SCHEDULER, TRAJECTORY, VANISHES, Planned

STARTED_S = 120.0
SETTLED_S, LONG_S = 5.0, 10.0
PLANNED = (
    Planned(VANISHES, 0, at_once=True),
    Planned(TRAJECTORY, 1),
    Planned(SCHEDULER, 0, at_once=True),
    Planned(INFERENCE, 0),
    Planned(INFERENCE, 1),
)


@pytest.mark.parametrize("seed", [3])
def test_whoever_is_killed_no_arm_moves_wrongly_and_every_robot_goes_on(
    ros_domain: int, tmp_path: Path, seed: int
) -> None:
    NodeProcess.any_killed = True
    environment = {**os.environ, **node_environment(tmp_path)}
    with Fleet(tmp_path, environment, robots=2, seed=seed) as fleet:
        begun = fleet.until(lambda: fleet.moving(dict.fromkeys(fleet.robots, 0)), STARTED_S)
        assert begun, "\n".join(process.last_words() for process in fleet.processes.values())
        kills = run.play(fleet, PLANNED, seed, pause_s=0.2, patience_s=STARTED_S)
        judged = [robot.judge() for robot in fleet.robots.values()]
        left, lives = leaks.rest(fleet, STARTED_S), leaks.lives(fleet, SETTLED_S, LONG_S)
        ended = {name: process.ended for name, process in fleet.processes.items() if process.ended}
        statuses = fleet.end()
        files = set().union(*(process.left for process in fleet.processes.values()))
    sweep({Path("/dev/shm") / name for name in files})
    for robot in judged:
        assert not robot["broken"] and not robot["wrong"] and not robot["rejected"]
        assert robot["moved_s"] > 1.0
    stuck = {kill.victim: kill for kill in kills if None in kill.resumed_s.values()}
    assert not stuck
    assert not [kill for kill in kills if kill.silent]
    assert {life["process"] for life in lives} >= {"/robot0/trajectory"}, "nobody lived through it"
    faults = leaks.faults(left, lives, len(kills))
    assert not faults, "\n".join(faults)
    assert not ended and not any(statuses.values())
    counts = fleet.network.counts
    assert counts["late"] and counts["doubled"] and counts["overtaken"]
