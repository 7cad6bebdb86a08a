"""Fast-WAM in the engine: chunks as recorded, text once an instruction, robots with their own words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
import torch
from builders import make_policy
from fastwam_oracle import FastWAMOracle
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.fastwam.policy import FastWAMPolicy
from vla_accel_ros.models.text.t5 import T5Encoder

OTHER = "open the drawer"


@dataclass(frozen=True)
class Counting(FastWAMPolicy):
    """runs: how often words and frames were encoded."""

    runs: Counter[str] = field(default_factory=Counter)

    def text_encode(self, words: Tensor) -> dict[str, Tensor]:
        self.runs["text_encode"] += 1
        return super().text_encode(words)

    def vae_encode(self, pixels: Tensor) -> dict[str, Tensor]:
        self.runs["vae_encode"] += 1
        return super().vae_encode(pixels)


@cache
def oracle() -> FastWAMOracle:
    return FastWAMOracle.load("fastwam/checkpoint")


def counting() -> Counting:
    return Counting(**vars(oracle().policy))


def test_a_chunk_is_the_recorded_one() -> None:
    engine = Engine(oracle().policy, steps=len(oracle()["steps.x_t"]))
    with engine.observe(oracle().observation) as prefix:
        chunk = engine.act(prefix, noise=oracle()["noise"][0].numpy())
    assert np.abs(chunk.actions - oracle()["actions"][0].numpy()).max() < 1e-5


def test_words_are_encoded_once_an_instruction_and_a_picture_once_a_frame() -> None:
    policy, frame = counting(), oracle().observation
    engine = Engine(policy, steps=2)
    for words in (frame.instruction, OTHER, frame.instruction):
        with engine.observe(replace(frame, instruction=words)) as prefix:
            engine.act(prefix)
            engine.act(prefix)
    assert policy.runs == Counter(text_encode=2, vae_encode=3)


def test_words_and_joints_change_the_chunk() -> None:
    engine, frame = Engine(oracle().policy, steps=4), oracle().observation
    noise = oracle()["noise"][0].numpy()
    frames = frame, replace(frame, instruction=OTHER), replace(frame, state=frame.state + 0.5)
    chunks = [engine.act(engine.observe(each), noise=noise).actions for each in frames]
    assert all(np.abs(chunk - chunks[0])[:, [0, 2, 3]].max() > 1e-4 for chunk in chunks[1:])


def test_a_batch_of_chunks_in_one_forward_is_each_alone() -> None:
    policy, many = oracle().policy, []
    for number, words in enumerate((oracle().spec["task"], OTHER)):
        frame = replace(oracle().observation, instruction=words, state=oracle().observation.state + number)
        inputs = policy.inputs(frame)
        kept = policy.text_encode(inputs.tokens) | policy.vae_encode(inputs.images)
        many.append(kept | policy.prefill(kept["latents"], kept["video_text"], inputs.state))
    x, t = torch.cat([oracle()["noise"], -oracle()["noise"]]), torch.tensor([1.0, 0.4])
    names = "action_text", "video", "joints"
    together = policy.model.velocity(x, t, *(torch.stack([kept[name] for kept in many]) for name in names))
    for row, kept in enumerate(many):
        alone = policy.denoise(x[row : row + 1], t[row : row + 1], *(kept[name] for name in names))
        assert (together[row] - alone[0]).abs().max() < 1e-5


def test_text_weights_on_the_host_change_no_bit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, chunks, cpu = list[T5Encoder](), list[np.ndarray](), T5Encoder.cpu

    def noted(encoder: T5Encoder) -> T5Encoder:
        moved.append(encoder)
        return cpu(encoder)

    monkeypatch.setattr(T5Encoder, "cpu", noted)
    for offload in ("none", "text"):
        policy = FastWAMOracle.load("fastwam/checkpoint", device).policy
        engine = Engine(policy, steps=2, offload=offload)
        with engine.observe(oracle().observation) as prefix:
            chunks.append(engine.act(prefix, noise=3).actions)
        places = {parameter.device.type for parameter in policy.model.text_encoder.parameters()}
        assert places == {"cpu" if offload == "text" else device}
        assert policy.model.device.type == device
        assert moved == ([policy.model.text_encoder] if offload == "text" else [])
    np.testing.assert_array_equal(chunks[0], chunks[1])


def test_a_policy_without_a_text_encoder_of_its_own_cannot_offload_it() -> None:
    with pytest.raises(ValueError, match="offload is text"):
        Engine(make_policy("pi05"), offload="text")
