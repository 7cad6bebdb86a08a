"""Frames of embeddings behind the scheduler: what rides, what is drafted, and that tokens are greedy."""

from __future__ import annotations

import pytest
import torch

from grids import sizes
from grids.language import Finished, Language
from vla_accel_ros.engine.config import FRESHNESS, PIPELINED, RATE, SEQUENTIAL, SPECULATIVE
from vla_accel_ros.tools.bench.subjects import random_llama

TOKENS = 3


@pytest.fixture(scope="module")
def made() -> tuple:
    model = random_llama(sizes.small().actionflow_model, torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(0)
    width = model.config.prefix.width
    return model, [torch.randn(1, 9, width, generator=generator) for _ in range(2)]


def frames(made: tuple, mode: str, prefer: str, drafts: list | None = None) -> list[tuple[int, Finished]]:
    """Of six frames, which was the newest when each was finished."""
    model, prompts = made
    language, found = Language(model, prompts, TOKENS, mode, prefer, None, drafts or []), []
    newest = -1

    def finish(one: Finished, age_s: float) -> None:
        found.append((newest, one))

    for newest in range(6):
        language.frame(newest, finish)
    return found


def test_every_mode_says_the_greedy_tokens(made: tuple) -> None:
    truth = {one.frame % 2: one.tokens for _, one in frames(made, SEQUENTIAL, FRESHNESS)}
    wrong = [tuple((token + 1) % 64 for token in truth[index]) for index in range(2)]
    half = [(truth[index][0], *wrong[index][1:]) for index in range(2)]
    for prefer in (RATE, FRESHNESS):
        for given, accepted in ((wrong, 0), (half, 1), ([truth[0], truth[1]], 2)):
            found = frames(made, SPECULATIVE, prefer, drafts=given)
            assert found and all(one.tokens == truth[one.frame % 2] for _, one in found)
            assert {one.accepted for _, one in found} == {accepted}
            late = (TOKENS - 1 - accepted) if prefer == RATE else 0
            assert {newest - one.frame for newest, one in found} == {late}
    piped = frames(made, PIPELINED, FRESHNESS)
    assert all(one.tokens == truth[one.frame % 2] for _, one in piped)
    assert [(newest, one.frame) for newest, one in piped] == [(2, 0), (3, 1), (4, 2), (5, 3)]
