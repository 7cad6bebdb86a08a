"""A frame with other words is what observing with those words gives, and shares what it may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_observation, make_policy
from openvla_builders import make_openvla_folder, make_openvla_observation
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import PoolExhausted, Prefix
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.types import Observation

Made = tuple[Engine, Observation, Observation]
"""An engine, an observation, and the same with other words."""


def make_pi(kind: str, fast: bool = False) -> Made:
    seen = make_observation()
    return (
        Engine(make_policy(kind), fast=fast),
        seen,
        replace(seen, instruction="put the red pad on the block"),
    )


def make_openvla(folder: Path) -> Made:
    seen = make_openvla_observation(instruction="lift the red cup")
    engine = Engine(load_policy(make_openvla_folder(folder, seed=3)))
    return engine, seen, replace(seen, instruction="lift the robot to the red cup")


@pytest.fixture(params=["pi0", "pi05", "pi05 fast", "openvla"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    kind, _, fast = request.param.partition(" ")
    return make_openvla(tmp_path) if kind == "openvla" else make_pi(kind, bool(fast))


def keys(engine: Engine, prefix: Prefix) -> Tensor:
    """[layers, tokens, ...]"""
    return engine.runner.pool.view(prefix.slot, prefix.n_tokens).k[:, 0].transpose(1, 2).clone()


def reworded(engine: Engine, prefix: Prefix, words: str) -> Prefix:
    """The same frame with other words."""
    frame = engine.runner.prefixes.hold(prefix)
    try:
        with torch.inference_mode():
            return engine.runner._reworded(frame, words)
    except BaseException:
        frame.release()
        raise


def count_encodings(engine: Engine) -> Callable[[], int]:
    """How often the vision tower has run since."""
    runs: list[int] = []
    policy: Any = engine.policy
    model = policy.model
    pi = policy.config.kind.startswith("pi")
    tower = model.paligemma_with_expert.paligemma.model.vision_tower if pi else model.vision_backbone
    tower.register_forward_hook(lambda *_: runs.append(1))
    return lambda: len(runs)


def test_it_is_the_prefix_that_those_words_would_have_had(made: Made) -> None:
    engine, observation, other = made
    with (
        engine.observe(observation) as frame,
        reworded(engine, frame, other.instruction) as other_words,
        engine.observe(other) as expected,
    ):
        assert (other_words.version, other_words.stamp_ns) == (frame.version, frame.stamp_ns)
        assert (other_words.instruction, other_words.n_tokens) == (other.instruction, expected.n_tokens)
        torch.testing.assert_close(keys(engine, other_words), keys(engine, expected), atol=1e-4, rtol=1e-4)
        answers = [engine.ask(prefix, max_tokens=5) for prefix in (other_words, expected)]
        assert "".join(answers[0]) == "".join(answers[1])
        assert answers[0].tokens == answers[1].tokens
        chunks = [engine.act(prefix, noise=0).actions for prefix in (other_words, expected)]
        np.testing.assert_allclose(chunks[0], chunks[1], atol=1e-4)


def test_a_question_is_answered_as_about_a_frame_with_those_words_and_keeps_nothing(made: Made) -> None:
    engine, observation, other = made
    with engine.observe(other) as prefix:
        expected = "".join(engine.ask(prefix, max_tokens=5))
    encodings = count_encodings(engine)
    with engine.observe(observation) as frame:
        encoded, own = encodings(), "".join(engine.ask(frame, max_tokens=5))
        with engine.ask(frame, other.instruction, max_tokens=5) as answer:
            assert engine.runner.pool.free == engine.runner.pool.slots - 2  # the frame, and the words
            assert "".join(answer) == expected
        with engine.ask(frame, observation.instruction, max_tokens=5) as answer:
            assert engine.runner.pool.free == engine.runner.pool.slots - 1  # its own words are there
            assert "".join(answer) == own
        assert encodings() == encoded
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


def test_a_frame_is_encoded_once_and_stays_as_it_was_and_the_newest(made: Made) -> None:
    engine, observation, other = made
    encodings = count_encodings(engine)
    with engine.observe(observation) as frame:
        encoded, before = encodings(), keys(engine, frame)
        with (
            reworded(engine, frame, other.instruction) as other_words,
            engine.runner.prefixes.newest() as newest,
        ):
            assert newest.slot == frame.slot != other_words.slot
            with reworded(engine, other_words, observation.instruction) as back:  # its images came along
                torch.testing.assert_close(keys(engine, back), before, atol=1e-4, rtol=1e-4)
        assert encodings() == encoded
        assert torch.equal(keys(engine, frame), before)
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


def test_a_causal_prefix_shares_all_before_the_first_other_word_to_the_bit(tmp_path: Path) -> None:
    engine, observation, other = make_openvla(tmp_path)
    rows = []
    stack = engine.policy.model.stack
    with engine.observe(observation) as frame:
        stack.layers[0].register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[1]))
        with reworded(engine, frame, other.instruction) as other_words:
            words = [engine.policy.prompt(text.instruction, text.state) for text in (observation, other)]
            shared = frame.n_images + next(i for i, (a, b) in enumerate(zip(*words)) if a != b)
            old, new = keys(engine, frame), keys(engine, other_words)
            assert torch.equal(old[:, :shared], new[:, :shared])
            assert not torch.isclose(old[:, shared], new[:, shared]).all(dim=-1).any()
            assert rows[0] == other_words.n_tokens - shared  # no more was computed
        with reworded(engine, frame, observation.instruction) as same:
            assert torch.equal(keys(engine, same)[:, :-1], keys(engine, frame)[:, :-1])


def test_in_a_bidirectional_prefix_one_other_word_changes_what_the_images_are_keyed_by(kind: str) -> None:
    """Only before anything is attended to, in the first layer, keys are a token's own."""
    engine, observation, other = make_pi(kind)
    with engine.observe(observation) as frame, reworded(engine, frame, other.instruction) as other_words:
        old, new = (keys(engine, prefix)[:, : frame.n_images] for prefix in (frame, other_words))
        torch.testing.assert_close(old[0], new[0])
        assert not torch.isclose(old[1], new[1]).all(dim=(1, 2)).any()


def test_what_cannot_be(made: Made) -> None:
    engine, observation, _ = made
    frame = engine.observe(observation)
    with pytest.raises(ValueError, match=r"2\d\d tokens.* 32"):
        reworded(engine, frame, "red " * 200)
    held = [reworded(engine, frame, "red") for _ in range(engine.runner.pool.slots - 1)]
    with pytest.raises(PoolExhausted):
        reworded(engine, frame, "red")
    for each in (*held, frame):
        each.release()
    with pytest.raises(ValueError, match="was released"):
        reworded(engine, frame, "red")
    assert engine.runner.pool.free == engine.runner.pool.slots - 1
