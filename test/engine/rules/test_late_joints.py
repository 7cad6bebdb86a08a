"""Chunks come evenly though joints do not, and none is made of joints that no longer come: simulated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from joint_arrivals import arrivals
from simulated_lanes import JOINTS_S, Streams

from vla_accel_ros.engine.config import ACTIONS_APART, ONE
from vla_accel_ros.engine.grid import MOST
from vla_accel_ros.engine.readiness import MOST_AGAIN
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, WHOLE, Request
from vla_accel_ros.engine.rules.chunks import StaggeredChunks
from vla_accel_ros.engine.simulated import Host

STEPS, GROUPS, SECONDS = 10, 9, 6.0
STEP_S = 0.00126
TAKES_S = {OBSERVE: 0.0049 / GROUPS, ACT: STEP_S, WHOLE: STEP_S * STEPS, ASK: 0.0003}
RECORDED: dict[str, Any] = {"late": 0.01, "missing": 0.001, "burst_s": 0.004}


class Sensing(Streams):
    """joints: when they come, with their stamps. phase: without it chunks begin as joints come. begun: (time,
    stamp, of a new frame) of each chunk."""

    def __init__(
        self, joints: Iterable[tuple[float, int]], word: str = ACTIONS_APART, phase: bool = True
    ) -> None:
        apart, self.begun = word == ACTIONS_APART, list[tuple[float, int, bool]]()
        options: dict[str, Any] = (
            {} if apart else {"groups": GROUPS, "text_groups": 4, "host": Host(launch_s=1e-4)}
        )
        policy = StaggeredChunks(STEPS, groups=1 if apart else GROUPS)
        super().__init__(word, policy, TAKES_S, steps=STEPS, chunk_s=JOINTS_S, joints_s=joints, **options)
        if not phase:
            self.grids[""].arrived = lambda now_s: None  # type: ignore[method-assign]

    def _begins(self, request: Request) -> None:
        self.begun.append((request.begun_s, request.act.sensed_ns, request.fresh))

    @property
    def ends_s(self) -> np.ndarray:
        return np.array([end_s for end_s, _, _ in self.made[""]])

    @property
    def intervals_s(self) -> np.ndarray:
        return np.diff(self.ends_s[2 * STEPS :])

    @property
    def ages_s(self) -> np.ndarray:
        return np.array([begun_s - stamp * JOINTS_S for begun_s, stamp, _ in self.begun])


@pytest.mark.parametrize("word", [ACTIONS_APART, ONE])
def test_chunks_are_more_even_than_joints_and_hardly_older(word: str) -> None:
    """In a lane of their own, and beside groups of frames and of text."""
    joints = arrivals(SECONDS, **RECORDED)
    paced, as_they_come = Sensing(joints, word), Sensing(joints, word, phase=False)
    for made in (paced, as_they_come):
        made.run_for(SECONDS, asking=word == ONE)
    most_s, coming_s = JOINTS_S * (1 + MOST), np.diff([time_s for time_s, _ in joints])
    assert np.quantile(paced.intervals_s, 0.99) <= most_s < np.quantile(coming_s, 0.99)
    assert np.quantile(as_they_come.intervals_s, 0.99) > most_s
    assert paced.ages_s.mean() <= as_they_come.ages_s.mean() + JOINTS_S
    assert len(paced.ends_s) >= len(as_they_come.ends_s)
    assert paced.steps_run <= 1.02 * len(paced.ends_s), "hardly one is for nothing"
    assert [level for _, level in paced.levels] == ["none"]


def test_joints_that_stop_bring_no_further_chunks_and_those_that_come_again_do_at_once() -> None:
    joints = arrivals(1.0) + [(time_s, 1000 + stamp) for time_s, stamp in arrivals(1.0, begin_s=1.4007)]
    stopped_s, last = joints[498]
    made = Sensing(joints)
    made.run_for(2.2, asking=False)
    without = [(begun_s, stamp, fresh) for begun_s, stamp, fresh in made.begun if stopped_s < begun_s < 1.4]
    assert {stamp for _, stamp, _ in without} == {last}
    further = [begun_s for begun_s, _, fresh in without if not fresh]
    assert len(further) <= MOST_AGAIN + 1 and max(further) <= stopped_s + (MOST_AGAIN + 2) * JOINTS_S
    again_s, stamp = joints[499]
    first_s = min(begun_s for begun_s, sensed, _ in made.begun if sensed == stamp)
    assert first_s <= again_s + 2 * STEP_S
    ends_s = made.ends_s[made.ends_s > 1.6]
    assert np.quantile(np.diff(ends_s), 0.99) <= JOINTS_S * (1 + MOST)


@pytest.mark.parametrize("stamps", ["same", "back"])
def test_it_is_the_stamp_that_says_whether_joints_are_new(stamps: str) -> None:
    """A driver that repeats its last state has stopped; one whose clock is set back has not."""
    joints = [
        (time_s, stamp if stamp < 500 else {"same": 500, "back": stamp - 10_000}[stamps])
        for time_s, stamp in arrivals(2.0)
    ]
    made = Sensing(joints)
    made.run_for(2.0, asking=False)
    further = [begun_s for begun_s, _, fresh in made.begun if begun_s > 1.02 and not fresh]
    assert (not further) if stamps == "same" else len(further) > 450


def test_the_same_arrivals_make_the_same_chunks_at_the_same_times() -> None:
    runs = [Sensing(arrivals(1.0, **RECORDED)) for _ in range(2)]
    for made in runs:
        made.run_for(1.0, asking=False)
    first, second = (run.begun for run in runs)
    assert first == second and len(first) > 450 and all(math.isfinite(begun_s) for begun_s, _, _ in first)
