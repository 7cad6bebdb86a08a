"""A frame in groups of layers: the same bits as at once, whatever is computed between two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_config, make_model
from hypothesis import given
from hypothesis import strategies as st
from stage_setting import InParts, Setting

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.prefill.groups import Frame, Groups
from vla_accel_ros.engine.stages.prefill.layered import sizes
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.config import GemmaConfig, VisionConfig
from vla_accel_ros.types import Torn

LAYERS = 4
"""Of the image encoder and the prefix stack of make_config together."""


# How layers are grouped.


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=60), st.data())
def test_groups_have_all_layers_and_each_at_least_one(costs: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(costs)))
    found = sizes(costs, count)
    assert len(found) == count and sum(found) == len(costs) and min(found) >= 1


def test_a_model_of_full_size_is_cut_into_parts_of_about_the_same_length() -> None:
    """27 layers of an image encoder, 17 of a prefix stack and what is left of its last."""
    costs = [1.3 / 27] * 27 + [3.97 / 17.1] * 17 + [0.1 * 3.97 / 17.1]
    for count in (2, 4, 6, 8):
        ends = np.cumsum(sizes(costs, count))
        taken = [sum(costs[end - size : end]) for end, size in zip(ends, sizes(costs, count), strict=True)]
        assert max(taken) < sum(costs) / count + 0.15
    assert max(taken) < 0.85


@pytest.mark.parametrize("count", [0, 4])
def test_more_groups_than_layers_cannot_be(count: int) -> None:
    with pytest.raises(ValueError, match=f"3 layers cannot be in {count} groups; give 1 to 3"):
        sizes([1.0, 2.0, 3.0], count)


# The same bits.


class Grouped(Setting):
    """A model's stages in groups, and what whole ones make of the same frames."""

    def __init__(self, kind: str, count: int, ops: Any = None, precision: str = "exact") -> None:
        super().__init__(kind, ops=ops)
        self.stages = Stages(self.model, self.pool, ops=ops, precision=precision, groups=count)
        assert self.stages.groups is not None
        self.groups: Groups = self.stages.groups
        other = KVPool(self.config.prefix, 4, self.config.max_tokens, torch.device("cpu"), torch.float32)
        self.whole = Stages(self.model, other, ops=ops, precision=precision)

    def begin(self, frame: tuple[np.ndarray, torch.Tensor], slot: int) -> Frame:
        images, prompt = frame
        return self.groups.begin(images, lambda: prompt, slot)

    def finish(self, frame: Frame) -> None:
        while frame.groups:
            self.groups.advance(frame)
        self.groups.advance(frame)

    def assert_same(self, frame: tuple[np.ndarray, torch.Tensor], slot: int, length: int) -> None:
        images, prompt = frame
        (whole,) = self.whole.observe([images], [prompt], [slot])
        assert length == whole
        for ours, theirs in zip(self.pool.view(slot, length), self.whole.pool.view(slot, whole), strict=True):
            assert torch.equal(ours, theirs)
        images_tokens = length - len(prompt)
        assert torch.equal(self.stages.images[slot, :images_tokens], self.whole.images[slot, :images_tokens])
        assert torch.equal(self.stages.last_hidden(slot, length), self.whole.last_hidden(slot, length))


@pytest.mark.parametrize("count", range(2, LAYERS + 1))
@pytest.mark.parametrize(("ops", "precision"), [(None, "exact"), (InParts, "exact"), (None, "fp8")])
def test_a_prefix_in_groups_is_that_at_once(kind: str, count: int, ops: Any, precision: str) -> None:
    setting = Grouped(kind, count, ops, precision)
    for views, words in ((2, 5), (1, 20), (2, 17)):
        seen = setting.frame(views, words)
        frame, told = setting.begin(seen, 2), []
        while frame.groups:
            told.append(frame.stage)
            setting.groups.advance(frame)
        assert len(told) == count - 1 and told == sorted(told)
        setting.assert_same(seen, 2, frame.length)


# What comes between two groups.


@pytest.mark.parametrize("after", range(LAYERS - 1))
def test_another_frame_or_other_words_between_groups_tear_nothing(after: int) -> None:
    setting = Grouped("pi05", LAYERS)
    first, second = setting.frame(2, 5), setting.frame(1, 9)
    frames = [setting.begin(first, 0)]
    for _ in range(after):
        setting.groups.advance(frames[0])
    frames.append(setting.begin(second, 1))
    assert not frames[0].groups, "one is in progress at a time"
    other = torch.tensor([5, 6, 7])
    setting.stages.reword(0, frames[0].images, other, 3)
    setting.finish(frames[1])
    setting.finish(frames[0])
    setting.assert_same(first, 0, frames[0].length)
    setting.assert_same(second, 1, frames[1].length)
    setting.assert_same((first[0], other), 3, frames[0].images + 3)


def test_of_a_dropped_frame_nothing_more_is_computed() -> None:
    setting = Grouped("pi0", LAYERS)
    frame = setting.begin(setting.frame(2, 5), 0)
    frame.drop()
    setting.pool.k[0] = 7.0
    second = setting.frame(2, 5)
    setting.finish(after := setting.begin(second, 1))
    assert (setting.pool.k[0] == 7.0).all()
    setting.assert_same(second, 1, after.length)


def failing(setting: Grouped, error: BaseException) -> Callable[[], None]:
    """The next layer of the prefix stack raises; returns what mends it."""
    prefill = setting.stages.prefill(2, 5)
    kept = prefill._layer

    def fail(index: int, left: Any) -> Any:
        raise error

    prefill._layer = fail  # type: ignore[method-assign,assignment]
    return lambda: setattr(prefill, "_layer", kept)


@pytest.mark.parametrize("error", [RuntimeError("no kernel"), KeyboardInterrupt()])
def test_a_frame_that_fails_in_another_call_is_told_so_and_not_taken_for_finished(
    error: BaseException,
) -> None:
    setting = Grouped("pi0", LAYERS)
    frame = setting.begin(setting.frame(2, 5), 0)
    mend, second = failing(setting, error), setting.frame(1, 9)
    if isinstance(error, Exception):
        after = setting.begin(second, 1)
    else:
        with pytest.raises(KeyboardInterrupt):
            setting.begin(second, 1)
        after = setting.begin(second, 1)
    mend()
    with pytest.raises(RuntimeError, match=r"no kernel|broken off between"):
        setting.groups.advance(frame)
    setting.finish(after)
    setting.assert_same(second, 1, after.length)


def test_images_may_be_overwritten_after_the_first_group_and_a_torn_frame_is_none() -> None:
    setting = Grouped("pi0", LAYERS)
    images, prompt = setting.frame(2, 5)
    lent = images.copy()
    frame = setting.begin((lent, prompt), 0)
    lent[:] = 0
    setting.finish(frame)
    setting.assert_same((images, prompt), 0, frame.length)

    def torn() -> None:
        raise Torn("overwritten")

    for noticing in (setting.groups.advance, lambda frame: setting.groups.launched(frame)()):
        frame = setting.groups.begin(images, lambda: prompt, 1, torn)
        with pytest.raises(Torn):
            noticing(frame)
        frame.drop()
        setting.pool.k[1] = 7.0
        setting.stages.observe([images], [prompt], [0])
        assert (setting.pool.k[1] == 7.0).all(), "nothing is left of it"


def test_a_frame_that_is_dropped_or_cannot_be_begun_needs_its_images_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting, ends = Grouped("pi0", LAYERS), list[None]()
    images, prompt = setting.frame(2, 5)
    monkeypatch.setattr(setting.stages.encode(2).upload, "end", lambda *taken: ends.append(None))
    frame = setting.groups.begin(images, lambda: prompt, 1)
    assert not ends
    for _ in range(2):
        frame.drop()
    assert len(ends) == 1

    def unspeakable() -> torch.Tensor:
        raise ValueError("no words")

    with pytest.raises(ValueError, match="no words"):
        setting.groups.begin(images, unspeakable, 1)
    assert len(ends) == 2


# Captured.


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["exact", "fp8"])
@pytest.mark.parametrize("apart", [False, True], ids=["no partition", "in a lane's stream"])
def test_graphs_of_groups_make_the_bits_of_one_graph(kind: str, precision: str, apart: bool) -> None:
    """bfloat16 and the kernels; with another call between the groups, and the next frame at once after it."""
    device, vision = torch.device("cuda"), VisionConfig(144, 5, 288, 2, image_size=56, patch=14)
    stack = GemmaConfig(width=256, depth=6, mlp=1024, heads=4, kv_heads=1, head_dim=64)
    config = make_config(kind, vision=vision, prefix=stack, expert=replace(stack, width=128, mlp=512))
    model, generator = make_model(config).to(device), torch.Generator().manual_seed(1)
    model = model.set_precision(torch.bfloat16)
    pools = [KVPool(config.prefix, 6, config.max_tokens, device, torch.bfloat16) for _ in range(2)]
    whole, stages = (
        Stages(model, pool, precision=precision, groups=count) for pool, count in zip(pools, (1, 7))
    )
    stream = torch.cuda.Stream(device)
    if apart:
        stages.partitions["vision"] = stream
    assert stages.groups is not None
    seen = [
        (
            torch.randint(256, (views, 60, 80, 3), generator=generator).byte().numpy(),
            torch.randint(4, config.vocab, (words,), generator=generator),
        )
        for views, words in ((2, 5), (2, 7), (1, 20), (2, 5), (2, 9))
    ]
    for slot, (images, prompt) in enumerate(seen):
        (length,) = whole.observe([images], [prompt], [slot])
        with torch.cuda.stream(stream if apart else torch.cuda.current_stream()):
            frame = stages.groups.begin(images, prompt.clone, slot)
            while frame.groups:
                if slot == 3 and len(frame.groups) == 2:
                    stages.reword(0, 2 * vision.tokens, prompt, 5)
                    assert not frame.groups, "buffers are one frame's"
                stages.groups.advance(frame)
        torch.cuda.synchronize()
        for ours, theirs in zip(pools[1].view(slot, length), pools[0].view(slot, length), strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(stages.last_hidden(slot, length), whole.last_hidden(slot, length))
