"""The random policies of the tests say different things of different frames, token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import assert_varied, make_config, make_model, make_observation, make_policy
from openvla_builders import make_openvla, make_openvla_folder, make_openvla_observation

from shared.decoding import decode
from vla_accel_ros.models.checkpoints.checkpoint import load_policy


@torch.inference_mode()
def greedy(model: Any, prompt: torch.Tensor, **prefix: object) -> list[int]:
    hidden, past = model.prefix(prompt, **prefix)
    return [int(step.tokens) for step in decode(model, past, hidden[:, -1], 7)]


def test_answers_vary(kind: str) -> None:
    model, answers = (policy := make_policy(kind)).model, []
    for seed in range(4):
        inputs = policy.inputs(make_observation(seed))
        with torch.inference_mode():
            prompt = torch.cat((model.encode(inputs.images).flatten(0, 1), model.embed_tokens(inputs.tokens)))
        answers.append(greedy(model, prompt[None]))
    assert_varied(answers)


@pytest.mark.parametrize("seed", [0, 4])
def test_action_tokens_vary(seed: int, tmp_path: Path) -> None:
    policy: Any = load_policy(make_openvla_folder(tmp_path, seed=seed))
    with torch.inference_mode():
        prompts = [policy.embed(policy.inputs(make_openvla_observation(frame))) for frame in range(4)]
    assert_varied([greedy(policy.model, prompt) for prompt in prompts])


@pytest.mark.parametrize("make", [make_openvla, lambda: make_model(make_config("pi05"))])
def test_tokens_of_any_prompt_vary(make: Callable[[], torch.nn.Module]) -> None:
    generator = torch.Generator().manual_seed(0)
    model: Any = make()
    prompts = [torch.randn(1, 9, model.config.prefix.width, generator=generator) for _ in range(4)]
    assert_varied([greedy(model, prompt) for prompt in prompts])


def test_what_repeats_is_not_varied() -> None:
    assert_varied([[1, 2], [2, 1]])
    for answers in ([[1, 1], [2, 2]], [[1, 2], [1, 2]], [[1, 2]]):
        with pytest.raises(AssertionError):
            assert_varied(answers)
