"""Several chunks under way through the front door: each the one that act would have made."""

from __future__ import annotations

import numpy as np
import pytest
from builders import JOINTS, make_observation, make_policy
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import make_openvla_folder

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.guiding import guidance_to
from vla_accel_ros.engine.loops import InferenceLoops, Pace, Ports
from vla_accel_ros.engine.types import Chunk, Observation
from vla_accel_ros.models.checkpoint import load_policy
from vla_accel_ros.models.policy import Policy

STEPS, COUNT = 4, 3


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return make_policy(request.param)


def make_engine(policy: Policy, staggered: int = COUNT, fast: bool = False) -> Engine:
    return Engine(policy, slots=staggered + 4, steps=STEPS, seed=3, fast=fast, staggered=staggered)


def observation(number: int, words: str = "reach the red block") -> Observation:
    return make_observation(number, instruction=words, stamp_ns=1000 + number)


def state_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).uniform(-0.5, 0.5, JOINTS).astype(np.float32)


def assert_made_by_act(engine: Engine, chunk: Chunk, seen: Observation) -> None:
    """To the bit what a request for one chunk makes of the same observation, state and noise."""
    with engine.observe(seen) as prefix:
        again = engine.act(prefix, chunk.state, engine.runner.actor.noise(chunk.request_id))
    np.testing.assert_array_equal(chunk.actions, again.actions)
    np.testing.assert_array_equal(chunk.update_magnitudes, again.update_magnitudes)
    assert chunk.stamp_ns == again.stamp_ns == seen.stamp_ns


def held(engine: Engine) -> int:
    """Slots that somebody holds, besides the newest frame's."""
    return engine.runner.pool.slots - engine.runner.pool.free - 1


@settings(max_examples=8, deadline=None)
@given(data=st.data(), count=st.integers(2, STEPS), fast=st.booleans())
def test_any_schedule_gives_the_chunks_of_act_to_the_bit(
    policy: Policy, data: st.DataObject, count: int, fast: bool
) -> None:
    """Frames come or do not, joints are newer, and pauses and other words drop what is under way."""
    engine = make_engine(policy, count, fast)
    seen: dict[int, Observation] = {}
    under_way: list[int] = []
    chunks: list[Chunk] = []
    words = "reach the red block"
    events = st.sampled_from(["frame", "frame", "frame", "wait", "words", "pause"])
    for number, event in enumerate(data.draw(st.lists(events, min_size=1, max_size=12), label="events")):
        if event == "pause":
            engine.forget_turns()
            under_way.clear()
        if event == "words":
            words += " now"
        if event in ("frame", "words"):
            seen[1000 + number] = observation(number, words)
            with engine.observe(seen[1000 + number]) as prefix:
                begun = engine.room_for(prefix)
                assert begun or (event == "frame" and len(under_way) == count)
                if begun:
                    told = {seen[stamp].instruction for stamp in under_way}
                    under_way = [] if told - {words} else under_way
                    under_way.append(1000 + number)
                chunk = engine.act_staggered(prefix if begun else None, state_of(number))
        else:
            chunk = engine.act_staggered(None)
        if chunk is not None:
            assert chunk.stamp_ns == under_way.pop(0)
            chunks.append(chunk)
        assert held(engine) <= len(engine.under_way) == len(under_way) <= count
    while engine.under_way:
        chunk = engine.act_staggered(None)
        chunks += [] if chunk is None else [chunk]
    assert engine.act_staggered(None) is None and held(engine) <= 0
    alone = engine if fast else make_engine(policy, 0)
    for chunk in chunks:
        assert (chunk.state is not None) == policy.feels
        assert_made_by_act(alone, chunk, seen[chunk.stamp_ns])


def test_once_full_every_call_finishes_the_chunk_of_its_own_frame(policy: Policy) -> None:
    engine, made = make_engine(policy, STEPS), []
    for number in range(9):
        with engine.observe(observation(number)) as prefix:
            made.append(engine.act_staggered(prefix, state_of(number)))
    stamps = [chunk and chunk.stamp_ns for chunk in made]
    assert stamps == [None] * (STEPS - 1) + [1000 + n for n in range(9 - STEPS + 1)]
    assert [chunk.kv_version for chunk in made[STEPS - 1 :]] == list(range(9 - STEPS + 1))
    assert engine.under_way == tuple(range(9 - STEPS + 1, 9))


def test_a_frame_is_held_while_its_chunk_is_under_way(policy: Policy) -> None:
    engine = make_engine(policy)
    with engine.observe(observation(0)) as prefix:
        engine.act_staggered(prefix, state_of(0))
    for number in range(1, 9):
        engine.observe(observation(number)).release()
    assert held(engine) == 1
    chunks = [engine.act_staggered(None) for _ in range(STEPS - 1)]
    assert held(engine) == 0
    assert_made_by_act(engine, chunks[-1], observation(0))


def test_without_room_none_is_begun(policy: Policy) -> None:
    engine = make_engine(policy)
    with engine.observe(observation(0)) as prefix:
        for _ in range(COUNT):
            assert engine.room_for(prefix)
            engine.act_staggered(prefix)
        assert not engine.room_for(prefix)
        with pytest.raises(ValueError, match="3 chunks are under way, and no more are allowed"):
            engine.act_staggered(prefix)
    assert engine.act_staggered(None) is not None


def test_guidance_is_for_chunks_one_at_a_time_and_goes_on_beside(policy: Policy) -> None:
    engine, plain = make_engine(policy), make_engine(policy, 0)
    with engine.observe(observation(0)) as prefix, plain.observe(observation(0)) as other:
        engine.act_staggered(prefix)
        first = engine.act(prefix)
        guided = engine.act(
            prefix, guidance=guidance_to(engine, prefix, first, delay=2), noise=engine.runner.actor.noise(7)
        )
        want = plain.act(other, guidance=plain.guidance(other, first, delay=2), noise=plain.noise(7))
    np.testing.assert_array_equal(guided.actions, want.actions)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"staggered": 5}, "staggered is 5, but a chunk takes 4 steps"),
        ({"staggered": 1}, "give 2 to 4, or 0 for one chunk at a time"),
        (
            {"staggered": 3, "slots": 5},
            "slots is 5, but 3 chunks under way .*: give at least 6",
        ),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Engine(make_policy(), **{"slots": 9, "steps": STEPS, **settings})


def test_who_acts_otherwise_says_so(tmp_path) -> None:
    with pytest.raises(ValueError, match="a openvla policy acts by tokens"):
        Engine(load_policy(make_openvla_folder(tmp_path)), slots=9, staggered=2)
    with pytest.raises(ValueError, match="chunks are made one at a time"):
        Engine(make_policy()).act_staggered(None)


class World:
    """Loops that are driven by hand: what they see, and the chunks they gave, each with its seconds."""

    def __init__(self, policy: Policy, staggered: int = STEPS) -> None:
        self.observations: list[Observation] = []
        self.felt: tuple[np.ndarray, int] | None = None
        self.chunks: list[Chunk] = []
        self.took: list[float] = []
        self.engine = make_engine(policy, staggered)
        ports = Ports(
            observe=lambda: self.observations.pop(0) if self.observations else None,
            observed=lambda: None,
            feel=lambda: self.felt,
            on_chunk=self._note,
            on_text=lambda text: None,
            on_error=lambda name, error: None,
        )
        self.loops = InferenceLoops(self.engine, ports, Pace(100.0), Pace(0.001), None)

    def see(self, number: int, words: str = "reach the red block") -> None:
        self.observations.append(observation(number, words))
        assert self.loops.see()

    def _note(self, chunk: Chunk, seconds: float) -> None:
        self.chunks.append(chunk)
        self.took.append(seconds)


def test_the_action_loop_begins_with_every_frame_and_steps_until_all_are_finished(policy: Policy) -> None:
    world = World(policy)
    assert not world.loops.act()
    for number in range(6):
        world.see(number)
        assert world.loops.act()
    while world.engine.under_way:
        assert world.loops.act()
    assert not world.loops.act()
    assert [chunk.stamp_ns for chunk in world.chunks] == [1000 + number for number in range(6)]
    assert all(seconds > 0.0 for seconds in world.took)
    for number, chunk in enumerate(world.chunks):
        assert_made_by_act(world.engine, chunk, observation(number))


def test_another_instruction_needs_no_room_and_ends_what_was_told_before(policy: Policy) -> None:
    world = World(policy, 2)
    for number, words in enumerate(("reach the red block", "reach the red block", "reach the green block")):
        world.see(number, words)
        assert world.loops.act()
    while world.engine.under_way:
        assert world.loops.act()
    assert [chunk.stamp_ns for chunk in world.chunks] == [1002]
    assert_made_by_act(world.engine, world.chunks[0], observation(2, "reach the green block"))


def test_newer_joints_begin_a_chunk_on_the_same_frame(policy: Policy) -> None:
    world = World(policy)
    world.see(0)
    for number in range(3):
        world.felt = state_of(number), number + 1
        assert world.loops.act()
    assert len(world.engine.under_way) == (3 if policy.feels else 1)


def test_a_pause_drops_what_is_under_way_and_gives_its_frames_back(policy: Policy) -> None:
    world = World(policy)
    world.see(0)
    world.loops.act()
    world.loops.forget()
    assert not world.engine.under_way and held(world.engine) == 0
    assert not world.loops.act() and not world.chunks


def test_the_loops_run_and_stop_in_the_middle_of_it(policy: Policy) -> None:
    world = World(policy)
    world.loops.start()
    world.observations += [observation(number) for number in range(20)]
    world.loops.stop()
    assert not world.engine.under_way and held(world.engine) <= 0
