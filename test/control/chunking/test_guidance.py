"""When chunks are guided: as the side that executes them tells, and never against its word in silence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_observation, make_policy

from vla_accel_ros.control.chunking.guidance import WANTED, Execution, Guiding
from vla_accel_ros.control.chunking.rtc import RealTimeChunking, RtcSettings
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.types import Chunk

S = 1_000_000_000
RUNNING = Execution("running", "rtc", lead_s=0.03, beginning=1)
POLICY = make_policy()


class Loop:
    """An engine that acts every 0.1 s on what it sees, its chunk 40 ms old when it is done."""

    def __init__(
        self,
        wanted: str = "auto",
        delivery_s: float = 0.01,
        unguided: str = "",
    ) -> None:
        self.engine = Engine(POLICY, steps=2, step_dt_s=0.1)
        self.now_ns = S
        settings = RtcSettings(delivery_s=delivery_s)
        self.chunking = RealTimeChunking(self.engine, lambda: self.now_ns + 40_000_000, settings)
        self.guiding = Guiding(self.chunking, wanted, unguided)

    def act(self) -> Chunk:
        self.now_ns += S // 10
        with self.engine.observe(make_observation(stamp_ns=self.now_ns)) as prefix:
            return self.chunking.act(prefix)

    def counted(self, chunks: int = 2) -> dict[str, int]:
        """What these further chunks were counted as."""
        self.chunking.counts.clear()
        for _ in range(chunks):
            self.act()
        return dict(self.chunking.counts)


def test_nothing_is_guided_before_anything_was_told():
    assert Loop().counted() == {"not told": 2}


@pytest.mark.parametrize("mode", ["block", "async", "blend"])
def test_a_trajectory_node_in_another_mode_is_not_guided_for(mode):
    loop = Loop()
    loop.guiding.told(replace(RUNNING, mode=mode))
    assert loop.counted() == {f"mode {mode}": 2}
    assert loop.guiding.conflict == ""


@pytest.mark.parametrize("state", ["stopping", "holding", "released"])
def test_what_the_robot_does_not_execute_is_not_continued_and_the_first_chunk_afterwards_is_free(state):
    loop = Loop()
    loop.guiding.told(RUNNING)
    assert loop.counted(3) == {"first": 1, "guided": 2}
    loop.guiding.told(replace(RUNNING, state=state))
    assert loop.counted() == {state: 2}
    loop.guiding.told(RUNNING)
    assert loop.counted(3) == {"first": 1, "guided": 2}


def test_the_same_word_again_changes_nothing_and_a_new_beginning_starts_anew():
    loop = Loop()
    loop.guiding.told(RUNNING)
    loop.act()
    loop.guiding.told(replace(RUNNING))
    assert loop.counted() == {"guided": 2}
    loop.guiding.told(replace(RUNNING, beginning=2))
    assert loop.counted() == {"first": 1, "guided": 1}
    loop.guiding.restart()
    assert loop.counted() == {"first": 1, "guided": 1}


def test_a_chunk_takes_over_as_late_as_the_trajectory_node_says():
    loop = Loop(delivery_s=0.02)
    loop.guiding.told(replace(RUNNING, lead_s=0.1))
    loop.act()
    assert loop.chunking.delay_s == pytest.approx(0.04 + 0.1 + 0.02)
    assert loop.chunking.delay_steps(0.1) == 2


def test_a_slower_way_to_the_controllers_needs_no_new_beginning():
    loop = Loop(delivery_s=0.02)
    loop.guiding.told(RUNNING)
    loop.act()
    assert loop.guiding.told(replace(RUNNING, lead_s=0.2))
    assert loop.counted() == {"guided": 2}
    assert loop.chunking.delay_s == pytest.approx(0.04 + 0.2 + 0.02)


def test_always_guides_for_an_executor_that_tells_nothing_and_never_guides_for_none():
    assert Loop("always").counted() == {"first": 1, "guided": 1}
    loop = Loop("never")
    loop.guiding.told(RUNNING)
    assert loop.counted() == {"never": 2}


def test_a_choice_that_contradicts_the_trajectory_node_is_said_in_a_sentence():
    conflicts = {}
    for wanted in WANTED:
        for mode in ("rtc", "blend"):
            loop = Loop(wanted)
            assert loop.guiding.conflict == ""
            loop.guiding.told(replace(RUNNING, mode=mode))
            conflicts[wanted, mode] = loop.guiding.conflict
    assert conflicts.pop(("always", "blend")).startswith(
        "rtc is always, but the trajectory node runs in mode"
    )
    assert conflicts.pop(("never", "rtc")).startswith(
        "rtc is never, but the trajectory node runs in mode rtc"
    )
    assert not any(conflicts.values())


def test_without_guidance_chunks_are_the_engines_own():
    loop, other = Loop("never"), Loop()
    np.testing.assert_array_equal(loop.act().actions, other.act().actions)
    with loop.engine.observe(make_observation(stamp_ns=loop.now_ns)) as prefix:
        noise = np.random.default_rng(0).standard_normal((8, 8), dtype=np.float32)
        free = loop.engine.act(prefix, noise=noise).actions
        np.testing.assert_array_equal(loop.chunking.act(prefix, noise=noise).actions, free)


def test_what_cannot_be_guided_is_not_and_a_trajectory_node_that_counts_on_it_is_named():
    loop = Loop(unguided="staggered")
    assert loop.guiding.told(replace(RUNNING, mode="blend")) and loop.guiding.conflict == ""
    assert loop.guiding.told(RUNNING) and not loop.guiding.told(RUNNING)
    assert loop.counted() == {"staggered": 2}
    assert "staggered chunks are not guided: set its mode to blend" in loop.guiding.conflict
    with pytest.raises(ValueError, match=r"rtc is always, .*staggered"):
        Loop("always", unguided="staggered")
