"""Frames of embeddings behind the scheduler: what rides, what is drafted, and that tokens are greedy."""

from __future__ import annotations

import pytest
import torch

from grids import sizes
from grids.language import Finished, Language
from shared.subjects import random_llama
from vla_accel_ros.engine.config import FRESHNESS, PIPELINED, RATE, SEQUENTIAL, SPECULATIVE

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
    language, finished = Language(model, prompts, TOKENS, mode, prefer, None, drafts or []), []
    newest = -1

    def finish(one: Finished, age_s: float) -> None:
        finished.append((newest, one))

    for newest in range(6):
        language.frame(newest, finish)
    return finished


def test_every_mode_says_the_greedy_tokens(made: tuple) -> None:
    truth = {frame.frame % 2: frame.tokens for _, frame in frames(made, SEQUENTIAL, FRESHNESS)}
    wrong_draft = [tuple((token + 1) % 64 for token in truth[index]) for index in range(2)]
    half = [(truth[index][0], *wrong_draft[index][1:]) for index in range(2)]
    for prefer in (RATE, FRESHNESS):
        for drafts, accepted in ((wrong_draft, 0), (half, 1), ([truth[0], truth[1]], 2)):
            finished = frames(made, SPECULATIVE, prefer, drafts=drafts)
            assert finished and all(frame.tokens == truth[frame.frame % 2] for _, frame in finished)
            assert {frame.accepted for _, frame in finished} == {accepted}
            delay = (TOKENS - 1 - accepted) if prefer == RATE else 0
            assert {newest - frame.frame for newest, frame in finished} == {delay}
    piped = frames(made, PIPELINED, FRESHNESS)
    assert all(frame.tokens == truth[frame.frame % 2] for _, frame in piped)
    assert [(newest, frame.frame) for newest, frame in piped] == [(2, 0), (3, 1), (4, 2), (5, 3)]
