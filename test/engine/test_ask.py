"""Answers: the language head continues the prefix's own prompt, and disturbs nothing."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import CAMERAS, make_checkpoint, make_config, make_observation, make_policy

from shared.decoding import decode
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.engine.request import ASK
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.text.tokenizer import TextStream

POLICY = make_policy("pi05")
NOISE = np.random.default_rng(7).standard_normal((8, 8), dtype=np.float32)


@pytest.fixture
def engine() -> Engine:
    return Engine(POLICY, slots=4, answers=2, answer_tokens=64)


def token(engine: Engine) -> bool:
    """One more for every open answer; False if there is none."""
    ran = engine.scheduler.step()
    assert all(request.want == ASK for request in ran)
    return bool(ran)


def greedy(policy: Policy, seed: int, tokens: int) -> list[int]:
    """Decoding without a cache: everything again for each token, prompt bidirectional, answer causal."""
    model, inputs = policy.model, policy.inputs(make_observation(seed))
    out: list[int] = []
    with torch.no_grad():
        prompt = torch.cat((model.encode(inputs.images).flatten(0, 1), model.embed_tokens(inputs.tokens)))
        for _ in range(tokens):
            embs = torch.cat((prompt, model.embed_tokens(torch.tensor(out, dtype=torch.int64))))[None]
            attend = torch.ones(1, embs.shape[1], embs.shape[1], dtype=torch.bool).tril()
            attend[:, : len(prompt), : len(prompt)] = True
            hidden, _ = model.prefix(embs, attend)
            out.append(int(model.logits(hidden[0, -1]).argmax()))
    return out


@pytest.mark.parametrize("seed", range(3))
def test_greedy_tokens_are_those_of_decoding_without_a_cache(engine: Engine, seed: int) -> None:
    expected = greedy(POLICY, seed, 6)
    with engine.observe(make_observation(seed)) as prefix:
        answer = engine.ask(prefix, max_tokens=6)
        text = "".join(answer)
    assert answer.tokens == (expected[: expected.index(1)] if 1 in expected else expected)
    assert text == POLICY.tokenizer.decode(answer.tokens)


def test_text_streams_piece_by_piece(engine: Engine) -> None:
    with engine.observe(make_observation()) as prefix, engine.ask(prefix, temperature=1.0) as answer:
        first = next(answer)
        assert first
        assert len(answer.tokens) == 1
        rest = list(answer)
    assert first + "".join(rest) == POLICY.tokenizer.decode(answer.tokens)
    assert len(answer.tokens) == 16


def test_a_newer_frame_does_not_disturb_an_answer_and_it_disturbs_no_action(engine: Engine) -> None:
    undisturbed = Engine(POLICY)
    with undisturbed.observe(make_observation(0)) as prefix:
        expected = list(undisturbed.ask(prefix, max_tokens=8, temperature=0.7))
        chunk = undisturbed.act(prefix, noise=NOISE)

    prefix = engine.observe(make_observation(0))
    answer = engine.ask(prefix, max_tokens=8, temperature=0.7)
    assert np.array_equal(engine.act(prefix, noise=NOISE).actions, chunk.actions)
    prefix.release()
    pieces = []
    for seed in range(1, 1 + len(expected)):
        pieces.append(next(answer))
        engine.observe(make_observation(seed)).release()
        newest = engine.runner.prefixes.newest()
        assert newest is not None
        with newest:
            engine.act(newest)
    assert pieces == expected
    assert next(answer, None) is None


def test_an_answer_gives_back_what_it_holds(engine: Engine) -> None:
    """Read to its end, closed, left by `with`, or forgotten before its first word."""

    def free_after(how: str) -> int:
        prefix = engine.observe(make_observation())
        answer = engine.ask(prefix, max_tokens=3)
        prefix.release()
        engine.observe(make_observation(1)).release()
        assert engine.runner.pool.free == engine.runner.pool.slots - 2
        if how == "read":
            list(answer)
        elif how == "closed":
            next(answer)
            answer.close()
            answer.close()
            assert list(answer) == []
        elif how == "left":
            with answer:
                next(answer)
        else:
            del answer
            gc.collect()
        return engine.runner.pool.free

    for how in ("read", "closed", "left", "forgotten"):
        assert free_after(how) == engine.runner.pool.slots - 1, how
    with engine.observe(make_observation()) as prefix:
        assert len([engine.ask(prefix), engine.ask(prefix)]) == 2


def test_too_many_answers_are_refused(engine: Engine) -> None:
    with engine.observe(make_observation()) as prefix:
        first, second = engine.ask(prefix), engine.ask(prefix)
        with pytest.raises(PoolExhausted):
            engine.ask(prefix)
        first.close()
        engine.ask(prefix).close()
        second.close()


def test_drawn_answers_depend_on_seed_and_request(engine: Engine) -> None:
    def texts(seed: int) -> list[str]:
        engine = Engine(POLICY, seed=seed)
        with engine.observe(make_observation()) as prefix:
            return ["".join(engine.ask(prefix, temperature=1.0)) for _ in range(2)]

    assert texts(0) == texts(0)
    assert len({*texts(0), *texts(1)}) == 4


def test_an_answer_ends_at_its_end_of_sequence() -> None:
    """The fourth token of a drawn answer is made the end: the answer is the three before it."""
    policy = make_policy("pi05")

    def draw() -> tuple[list[int], str]:
        engine = Engine(policy)
        with engine.observe(make_observation()) as prefix:
            answer = engine.ask(prefix, temperature=1.0)
            return answer.tokens, "".join(answer)

    tokens, _ = draw()
    assert len(tokens) == 16
    assert tokens[3] not in tokens[:3]
    policy.tokenizer.eos = tokens[3]
    assert draw() == (tokens[:3], policy.tokenizer.decode(tokens[:3]))


def test_characters_of_several_tokens_are_not_torn(tmp_path: Path) -> None:
    """With byte tokens, a piece is held back until its last character is whole."""
    folder = make_checkpoint(tmp_path, make_config(vocab=300))
    (folder / "tokenizer.json").unlink()
    source = Path(__file__).parents[1] / "data" / "tiny_sentencepiece.model"
    (folder / "tokenizer.model").write_bytes(source.read_bytes())
    policy = load_policy(folder, normalize=False, prompt_state="none")
    engine = Engine(policy, seed=3, answer_tokens=64)
    with engine.observe(make_observation()) as prefix:
        for _ in range(5):
            answer = engine.ask(prefix, max_tokens=24, temperature=5.0)
            pieces = list(answer)
            assert "".join(pieces) == engine.policy.tokenizer.decode(answer.tokens)
            assert all(pieces)
            assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])


def test_lengths_and_temperatures_are_checked(engine: Engine) -> None:
    with engine.observe(make_observation()) as prefix:
        for length in (0, 65, 2.5):
            with pytest.raises(ValueError, match=f"max_tokens is {length}; the engine takes 1 to 64"):
                engine.ask(prefix, max_tokens=length)  # type: ignore[arg-type]
        for temperature in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="temperature is"):
                engine.ask(prefix, temperature=temperature)
    assert engine.runner.text.places == 2


def test_an_answer_ends_at_a_text_and_does_not_say_it(engine: Engine) -> None:
    with engine.observe(make_observation()) as prefix:
        whole = "".join(engine.ask(prefix, max_tokens=16, temperature=2.0, seed=5))
        words = whole.split()
        stop = next(word for word in words[2:] if word not in words[:2])
        answer = engine.ask(prefix, max_tokens=16, temperature=2.0, seed=5, stop=("never said", stop))
        text = "".join(answer)
        assert text == whole[: whole.index(stop)]
        assert len(answer.tokens) < 16
    assert engine.runner.pool.free == engine.runner.pool.slots - 1
    with (
        engine.observe(make_observation()) as prefix,
        pytest.raises(ValueError, match=r"stop .*empty"),
    ):
        engine.ask(prefix, stop=("",))


def test_a_stop_that_is_one_text_is_refused_instead_of_its_letters_ending_the_answer(engine: Engine) -> None:
    refused = pytest.raises(ValueError, match="stop is 'done'")
    with engine.observe(make_observation()) as prefix, refused:
        engine.ask(prefix, stop="done")
    assert engine.runner.text.places == 2


def test_a_seed_makes_the_same_answer_in_any_engine() -> None:
    answers = []
    for requests_before in (0, 3):
        engine = Engine(POLICY, seed=requests_before)
        with engine.observe(make_observation()) as prefix:
            for _ in range(requests_before):
                list(engine.ask(prefix, max_tokens=2))
            answers.append(list(engine.ask(prefix, temperature=1.0, top_k=20, top_p=0.9, seed=11)))
            assert answers[-1] != list(engine.ask(prefix, temperature=1.0, top_k=20, top_p=0.9, seed=12))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("cameras", [(name,) for name in CAMERAS])
def test_a_missing_camera_is_not_where_the_first_word_is_read(
    engine: Engine, cameras: tuple[str, ...]
) -> None:
    """As the reference has it: a padded prefix with a mask, continued from its last valid token."""
    observation = make_observation(cameras=cameras)
    model, inputs = POLICY.model, POLICY.inputs(observation)
    with torch.no_grad():
        tokens = inputs.tokens
        images = torch.full((len(CAMERAS), *inputs.images.shape[1:]), -1.0)
        images[CAMERAS.index(cameras[0])] = inputs.images[0]
        words = torch.cat((tokens, torch.zeros(5, dtype=torch.int64)))  # and a padded prompt
        embs = torch.cat((model.encode(images).flatten(0, 1), model.embed_tokens(words)))[None]
        seen = [name in cameras for name in CAMERAS for _ in range(model.config.vision.tokens)]
        valid = torch.tensor([*seen, *[True] * len(tokens), *[False] * 5])[None]
        positions = valid.cumsum(dim=1) - 1
        hidden, past = model.prefix(embs, valid[:, None] & valid[:, :, None], positions)
        last = int(valid[0].nonzero()[-1])
        steps = decode(model, past, hidden[:, last], 6, valid=valid)
        expected = [int(step.tokens) for step in steps]
    with engine.observe(observation) as prefix:
        answer = engine.ask(prefix, max_tokens=6)
        list(answer)
    eos = POLICY.tokenizer.eos
    assert answer.tokens == (expected[: expected.index(eos)] if eos in expected else expected)


def test_answers_of_several_frames_share_their_forwards(engine: Engine) -> None:
    """One micro-batch is one token of each; who joins later is not behind with its own."""
    draws: dict[str, Any] = {"max_tokens": 5, "temperature": 1.0}
    alone, answers = [], []
    for seed in range(2):
        with engine.observe(make_observation(seed)) as prefix:
            alone.append("".join(engine.ask(prefix, seed=seed, **draws)))
    for seed in range(2):
        with engine.observe(make_observation(seed)) as prefix:
            answers.append(engine.ask(prefix, seed=seed, **draws))
        assert token(engine)
    assert [len(answer.tokens) for answer in answers] == [2, 1]
    said = [answer.take() for answer in answers]
    while token(engine):
        said = [before + answer.take() for before, answer in zip(said, answers, strict=True)]
    assert said == alone
    assert all(answer.ended for answer in answers) and not token(engine)


def test_an_answer_closed_by_whoever_hears_it_speak_is_taken_out_after_the_forward(engine: Engine) -> None:
    """As when the last reference goes in the middle of a forward."""
    with engine.observe(make_observation()) as prefix:
        first, second = (engine.ask(prefix, max_tokens=4) for _ in range(2))
    answers = engine.runner.text._answers
    forward, under_way = answers._forward, []

    def closing(segments: Any) -> object:
        first.close()
        under_way.append(len(answers.open))
        return forward(segments)

    answers._forward = closing
    list(second)
    assert under_way == [2, 1, 1] and first.ended and not list(first) and len(second.tokens) == 4
    assert engine.runner.pool.free == engine.runner.pool.slots - 1 and engine.runner.text.places == 2


def test_a_forward_that_fails_is_told_to_every_answer_in_it_and_later_ones_are_as_ever(
    engine: Engine,
) -> None:
    with engine.observe(make_observation()) as prefix:
        expected = "".join(engine.ask(prefix, max_tokens=6))
        answers = [engine.ask(prefix, max_tokens=6) for _ in range(2)]
        decoder, said = engine.runner.text._answers, next(answers[0])
        forward, numbers = decoder._forward, [answer.request for answer in answers]

        def failing(segments: object) -> None:
            answers.pop()  # forgotten meanwhile
            raise RuntimeError("out of memory")

        decoder._forward = failing
        assert token(engine)
        assert engine.runner.text.places == 2 and not engine.scheduler.requests
        (answer,) = answers
        with pytest.raises(RuntimeError, match="out of memory"):
            "".join(answer)
        assert answer.ended and expected.startswith(said)
        decoder._forward = forward
        later = engine.ask(prefix, max_tokens=6)
        assert "".join(later) == expected and later.request == max(numbers) + 1
    assert engine.runner.text.places == 2 and engine.runner.pool.free == engine.runner.pool.slots - 1


def test_an_answer_that_cannot_be_read_ends_and_the_other_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = TextStream.push

    def unreadable(stream: TextStream, token: int) -> str:
        if stream.tokens is broken.tokens:
            raise RuntimeError(f"{token} is no text")
        return push(stream, token)

    with engine.observe(make_observation()) as prefix:
        expected = "".join(engine.ask(prefix, max_tokens=3))
        broken, whole = (engine.ask(prefix, max_tokens=3) for _ in range(2))
    monkeypatch.setattr(TextStream, "push", unreadable)
    assert "".join(whole) == expected and broken.ended
    with pytest.raises(RuntimeError, match=r"^251 "):
        list(broken)
    assert engine.runner.text.places == 2 and engine.runner.pool.free == engine.runner.pool.slots - 1


class Collected(list[Any]):
    """A list, to look into which takes so many objects that the garbage collector runs."""

    def __getitem__(self, place: Any) -> Any:
        gc.collect()
        return super().__getitem__(place)

    def __len__(self) -> int:
        gc.collect()
        return super().__len__()


@pytest.mark.parametrize("pool", ["slots", "pages"])
def test_an_answer_may_be_collected_in_the_middle_of_what_a_pool_does(engine: Engine, pool: str) -> None:
    prefix, pages = engine.observe(make_observation()), engine.runner.text._pages
    unpromised = pages.unpromised
    cycle: list[object] = [engine.ask(prefix)]
    cycle.append(cycle)
    if pool == "slots":
        engine.runner.pool._counts = Collected(engine.runner.pool._counts)
    else:
        pages._free = Collected(pages._free)

    def work() -> None:
        engine.runner.pool.retain(prefix.slot)
        engine.runner.pool.release(prefix.slot)
        left.append(pages.unpromised)
        left.append(pages.unpromised)

    left: list[int] = []
    gc.disable()
    try:
        del cycle
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(timeout=20)
    finally:
        gc.enable()
    assert not thread.is_alive(), "it waits for itself"
    assert left[-1] == unpromised and engine.runner.text.places == 2
