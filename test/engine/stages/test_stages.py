"""Stages compute what the plain model computes: references in float32 on a CPU, folded weights, one pool."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_config, make_model
from stage_setting import InParts, Setting
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.engine.stages.denoise.denoise import Form
from vla_accel_ros.engine.stages.denoise.wide import MOST_NARROW, Wide
from vla_accel_ros.engine.stages.making import BUCKET
from vla_accel_ros.engine.stages.memory.upload import ImageUpload
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.engine.stages.stages import CHUNKS, Stages
from vla_accel_ros.models.flow.sampling import Flow, sample
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.conventions import padded
from vla_accel_ros.models.processing.resize import resize_bilinear

STEPS = 4

NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}


@torch.no_grad()
def plain_prefix(model: Pi, images: Sequence[np.ndarray] | np.ndarray, prompt: Tensor) -> tuple[Tensor, KV]:
    unit = [padded(torch.from_numpy(image)[None], 28, resize_bilinear) for image in images]
    embs = torch.cat((model.encode(torch.cat(unit)).flatten(0, 1), model.embed_tokens(prompt)))[None]
    return model.prefix(embs)


@torch.no_grad()
def plain_actions(model: Pi, noise: Tensor, state: Tensor, kv: KV, steps: int = STEPS) -> Flow:
    return sample(lambda x, t: model.velocity(x, torch.full((1,), t), state, kv), noise, steps)


def observe(setting: Setting, images: np.ndarray, prompt: Tensor) -> list[int]:
    """One frame into the first slot."""
    return setting.stages.observe([images], [prompt], [0])


@pytest.mark.parametrize(
    ("views", "words", "ops"),
    [
        *((views, words, None) for views in (1, 2) for words in (1, 5, BUCKET, BUCKET + 1, 32)),
        (2, 5, InParts),
    ],
)
def test_a_prefix_is_the_plain_one(kind: str, views: int, words: int, ops: Any) -> None:
    """ops: whose products are in parts."""
    setting = Setting(kind, ops=ops)
    images, prompt = setting.frame(views, words)
    hidden, kv = plain_prefix(setting.model, images, prompt)
    setting.pool.k.fill_(7.0)
    (length,) = setting.stages.observe([images], [prompt], [2])
    assert length == kv.k.shape[3]
    ours = setting.pool.view(2, length)
    torch.testing.assert_close(ours.k, kv.k, **NEAR)
    torch.testing.assert_close(ours.v, kv.v, **NEAR)
    assert (setting.pool.k[[0, 1, 3]] == 7.0).all()
    torch.testing.assert_close(setting.stages.last_hidden(2, length), hidden[0, -1], **NEAR)


def test_actions_are_the_plain_ones_for_any_number_of_steps(kind: str) -> None:
    setting = Setting(kind)
    images, prompt = setting.frame(2, 7)
    _, kv = plain_prefix(setting.model, images, prompt)
    lengths = setting.stages.observe([images], [prompt], [1])
    for steps in (1, STEPS, 10):
        noise, state = setting.noise(1)
        ours = setting.stages.act(noise, state, [1], lengths, steps)
        plain = plain_actions(setting.model, noise, state, kv, steps)
        torch.testing.assert_close(ours.actions, plain.actions, **NEAR)
        torch.testing.assert_close(ours.update, plain.update, **NEAR)


@pytest.mark.parametrize("most", [MOST_NARROW, 0])
def test_a_batch_is_its_parts_each_with_its_own_prefix(
    kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vla_accel_ros.engine.stages.making.MOST_NARROW", most)
    setting = Setting(kind)
    frames = [setting.frame(1, words) for words in (3, 9)]
    prefixes = [plain_prefix(setting.model, *frame)[1] for frame in frames]
    lengths = setting.stages.observe([image for image, _ in frames], [prompt for _, prompt in frames], [3, 0])
    for slot, length, kv in zip((3, 0), lengths, prefixes, strict=True):
        torch.testing.assert_close(setting.pool.view(slot, length).k, kv.k, **NEAR)
    order = [1, 0, 1]
    noise, state = setting.noise(3)
    slots, sizes = [(3, 0)[i] for i in order], [lengths[i] for i in order]
    ours = setting.stages.act(noise, state, slots, sizes, STEPS)
    for row, i in enumerate(order):
        plain = plain_actions(setting.model, noise[row : row + 1], state[row : row + 1], prefixes[i])
        torch.testing.assert_close(ours.actions[row], plain.actions[0], **NEAR)
    assert isinstance(setting.stages.denoise(3, STEPS), Wide) == (most == 0)


def test_images_may_be_overwritten_after_a_call_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy engine of a GPU reads them until `end` has returned."""
    setting, ended = Setting("pi05"), list[ImageUpload]()
    images, prompt = setting.frame(2, 5)

    def broken(stage: Stage, partition: object) -> None:
        assert not ended
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(ImageUpload, "end", lambda upload: ended.append(upload))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="a kernel failed"):
        patch.setattr(setting.stages, "replay", broken)
        setting.stages.observe([images], [prompt], [0])
    assert ended == [setting.stages.encode(2).upload]


def test_threads_that_share_a_stage_do_not_mix_their_chunks() -> None:
    setting = Setting("pi0")
    lengths = observe(setting, *setting.frame(1, 4))
    draws = [setting.noise(1) for _ in range(6)]
    alone: dict[int, Tensor] = {}
    together: dict[int, Tensor] = {}

    def act(index: int, made: dict[int, Tensor]) -> None:
        made[index] = setting.stages.act(*draws[index], [0], lengths, STEPS).actions

    setting.stages.denoise(1, STEPS)
    # In threads, too: one in which torch has done nothing yet may use other numbers of processors.
    for index in range(len(draws)):
        thread = threading.Thread(target=act, args=(index, alone))
        thread.start()
        thread.join()
    threads = [threading.Thread(target=act, args=(index, together)) for index in range(len(draws))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(together[index], alone[index]) for index in range(len(draws)))


def test_building_ahead_tells_its_progress_and_gives_the_slot_back() -> None:
    setting, told = Setting("pi05", slots=1), []
    setting.stages.build((1, 2), (3, 20, 16), (2, STEPS), (1, 2), lambda *said: told.append(said))
    assert [done for _, done, _ in told] == list(range(8))
    assert told[0] == ("prefix of 1 images and 16 words", 0, 8)
    assert told[-1] == (f"{STEPS} denoising steps of 2 chunks", 7, 8)
    assert setting.pool.acquire() == 0
    with pytest.raises(PoolExhausted):
        setting.stages.build((1,), (3,), (2,))


def test_every_form_of_a_chunk_can_be_built_ahead() -> None:
    setting, told = Setting("pi05", slots=1), []
    setting.stages.build((), (), (2,), progress=lambda *said: told.append(said[0]), forms=Form)
    assert told == [f"2 denoising steps of 1 {chunks}" for chunks in CHUNKS.values()]


def test_prompts_are_padded_to_buckets_but_never_beyond_what_a_slot_holds() -> None:
    stages = Setting("pi05").stages
    assert [stages.bucket(words) for words in (1, 16, 17, 32)] == [16, 16, 32, 32]
    odd = make_config("pi05", max_prompt=20)
    pool = KVPool(odd.prefix, 1, odd.max_tokens, torch.device("cpu"), torch.float32)
    assert Stages(make_model(odd), pool).bucket(17) == 20
