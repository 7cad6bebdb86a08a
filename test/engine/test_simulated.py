"""The simulated engine against queues whose waits are known."""

from __future__ import annotations

import numpy as np
import pytest
from scheduled import System
from simulated_fleet import Fleet

from vla_accel_ros.engine.config import TEXT_APART
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, Request
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, WholeChunks
from vla_accel_ros.engine.rules.rules import LANES
from vla_accel_ros.engine.simulated import IDLE

CHUNK_S, STEP_S, TOKEN_S = 0.01, 0.002, 0.003
LOAD, COUNT = 0.7, 2000


@pytest.mark.parametrize("captured", [False, True])
def test_chunks_one_after_another_wait_as_in_an_m_d_1_queue(captured: bool) -> None:
    """By Lindley's recursion each waits for what is left of those before it; on average that is load *
    service / (2 * (1 - load)), and, by Little's law, the rate times the time is how many are under way."""
    between_s = -np.log((np.arange(COUNT) + 0.5) / COUNT) * CHUNK_S / LOAD
    arrivals_s = np.random.default_rng(2).permutation(between_s).cumsum()
    profile = Profile({("act.denoise", 1): CHUNK_S})
    fleet = Fleet(WholeChunks(), 64, profile=profile, seats=None, captured=captured, host=IDLE)
    fleet.play(arrivals_s.tolist())
    waited_s = [0.0]
    for gap_s in np.diff(arrivals_s):
        waited_s.append(max(0.0, waited_s[-1] + CHUNK_S - gap_s))
    took_s = np.array([took_s for _, took_s in sorted(fleet.took_s)])
    np.testing.assert_allclose(took_s, np.array(waited_s) + CHUNK_S, atol=1e-9)
    assert np.mean(took_s - CHUNK_S) == pytest.approx(LOAD * CHUNK_S / (2 * (1 - LOAD)), rel=0.1)
    at_s = np.linspace(0.0, fleet.clock.now_s, 100_000)
    under_way = np.searchsorted(arrivals_s, at_s) - np.searchsorted(np.sort(arrivals_s + took_s), at_s)
    assert COUNT / fleet.clock.now_s * took_s.mean() == pytest.approx(under_way.mean(), rel=0.01)


def test_what_is_launched_behind_another_begins_when_that_is_over() -> None:
    system = System(StaggeredChunks(1), steps=2, captured=True)
    system.seen()
    system.runner.profile = Profile({("act.denoise", 1): STEP_S})
    began_s, request = system.clock.now_s, system.submit(ACT)
    for _ in range(2):
        system.scheduler.step()
    assert request.launched and system.clock.now_s == began_s, "both steps, and nothing was waited for"
    assert system.runner.ends_s[-2:] == pytest.approx([began_s + STEP_S, began_s + 2 * STEP_S])
    while not request.finished:
        system.advance(began_s + 1.0)
    assert system.clock.now_s == pytest.approx(began_s + 2 * STEP_S)


def test_a_lane_takes_twice_as_long_for_what_it_begins_beside_another() -> None:
    system = System(WholeChunks(), lanes=LANES[TEXT_APART], captured=True, tokens=2)
    system.seen()
    system.runner.profile = Profile({("act.denoise", 1): CHUNK_S, ("ask.decode", 1): TOKEN_S})
    ends_s = dict[str, float]()

    def note(request: Request) -> None:
        if request.finished:
            ends_s[request.want] = system.clock.now_s - began_s

    began_s = system.clock.now_s
    for want in (ACT, ASK):
        system.submit(want, on_progress=note)
    while len(ends_s) < 2:
        system.advance(began_s + 1.0)
    assert ends_s == pytest.approx({ACT: CHUNK_S, ASK: 2 * TOKEN_S})


def test_a_frame_that_is_finished_at_its_launch_counts_as_long_as_the_device_takes() -> None:
    system = System(StaggeredChunks(1), captured=True)
    system.runner.profile = Profile({("observe.encode", 1): CHUNK_S})
    frame = system.frame()
    system.scheduler.step()
    assert frame.finished and frame not in system.scheduler.requests, "what follows waits on the device"
    while system.lanes["main"].ahead:
        system.advance(1.0)
    assert system.scheduler.profile.usual_s("observe.encode", 1) == pytest.approx(CHUNK_S)
