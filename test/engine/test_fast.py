"""An engine with fast stages does what one without does: chunks, text, guidance; prepared ahead or not."""

from __future__ import annotations

import numpy as np
from builders import CAMERAS, make_observation, make_policy
from guiding import guidance_to

from vla_accel_ros.engine.engine import Engine


def test_chunks_and_text_are_those_of_the_plain_engine(kind: str) -> None:
    policy = make_policy(kind)
    chunks, texts = [], []
    for fast in (False, True):
        engine = Engine(policy, fast=fast)
        for seed, cameras in ((0, CAMERAS), (1, CAMERAS[:1]), (2, CAMERAS)):
            with engine.observe(make_observation(seed, cameras)) as prefix:
                state = np.full(6, 0.1 * seed, np.float32)
                chunks.append(engine.act(prefix, state))
                chunks.append(engine.act(prefix, state, steps=3))
                texts.append("".join(engine.ask(prefix, max_tokens=6)))
    half = len(chunks) // 2
    for plain, ours in zip(chunks[:half], chunks[half:], strict=True):
        np.testing.assert_allclose(ours.actions, plain.actions, atol=1e-4)
        np.testing.assert_allclose(ours.update_magnitudes, plain.update_magnitudes, atol=1e-4)
        assert (ours.request_id, ours.stamp_ns) == (plain.request_id, plain.stamp_ns)
    assert texts[:3] == texts[3:]


def test_guided_chunks_are_computed_by_the_plain_model_on_the_same_prefix() -> None:
    policy = make_policy("pi0")
    results = []
    for fast in (False, True):
        engine = Engine(policy, fast=fast)
        with engine.observe(make_observation()) as prefix:
            previous = engine.act(prefix)
            guidance = guidance_to(engine, prefix, previous, delay=2)
            results.append(engine.act(prefix, guidance=guidance).actions)
    np.testing.assert_allclose(results[1], results[0], atol=1e-4)


def test_a_prepared_engine_has_all_slots_free_and_the_same_results() -> None:
    policy, said = make_policy("pi05"), []
    engine, other = Engine(policy, fast=True), Engine(policy, fast=True)
    engine.prepare((1, 2), (20,), lambda name, done, total: said.append(name))
    assert said == [
        "prefix of 1 images and 32 words",
        "prefix of 2 images and 32 words",
        "10 denoising steps of 1 chunks",
        "10 denoising steps of 1 guided chunks",
    ]
    assert engine.runner.pool.free == engine.runner.pool.slots
    results = []
    for each in (engine, other):
        with each.observe(make_observation()) as prefix:
            results.append(each.act(prefix).actions)
    np.testing.assert_array_equal(results[0], results[1])
    Engine(policy).prepare((1,), (20,))


def test_forwards_of_every_number_of_answers_are_made_ahead() -> None:
    engine = Engine(make_policy("pi05"), slots=8, fast=True, answers=3, answer_tokens=100)
    engine.prepare((2,), (20,))
    forward = engine.runner.text._answers._forward
    made = len(forward.stages)
    assert engine.runner.text.places == 3 and engine.runner.pool.free == engine.runner.pool.slots
    with engine.observe(make_observation()) as prefix:
        answers = [engine.ask(prefix, max_tokens=100, temperature=1.0) for _ in range(3)]
        while engine.scheduler.step():
            pass
    assert max(len(answer.tokens) for answer in answers) > 60
    assert len(forward.stages) == made
