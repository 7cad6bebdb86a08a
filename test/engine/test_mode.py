"""The schedule of frames follows from measured times, measured acceptance and what the user prefers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import make_openvla, make_openvla_config
from torch import Tensor

from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.mode import (
    MODES,
    PREFERENCES,
    SCHEDULES,
    Frames,
    Mode,
    Times,
    best,
    expected,
    measure,
)
from vla_accel_ros.engine.token_pipeline import Finished, TokenPipeline
from vla_accel_ros.models import packed
from vla_accel_ros.models.decoding import decode
from vla_accel_ros.models.packed import Segment

MODEL = make_openvla(make_openvla_config())
SERVER = Times(prefill_s=0.008, drafted_s=0.0081, packed_s=0.0082, decode_s=0.0036)
K = 7


def prompt(seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(1, 9, MODEL.config.prefix.width, generator=made)


@torch.inference_mode()
def greedy(seed: int, tokens: int) -> tuple[int, ...]:
    hidden, past = MODEL.prefix(prompt(seed))
    return tuple(int(step.tokens) for step in decode(MODEL, past, hidden[:, -1], count=tokens))


def make_frames(mode: Mode, tokens: int = 4) -> Frames:
    pool = KVPool(MODEL.config.prefix, tokens, 16, torch.device("cpu"), torch.float32)
    return Frames(TokenPipeline(MODEL, pool, tokens), mode)


@pytest.mark.parametrize(
    ("accepted", "prefer", "camera_hz", "schedule"),
    [
        (0.0, "rate", float("inf"), "pipelined"),
        (3.0, "rate", float("inf"), "speculative"),
        (6.0, "rate", float("inf"), "speculative"),
        (0.0, "freshness", float("inf"), "sequential"),
        (3.0, "freshness", float("inf"), "speculative"),
        (6.0, "freshness", float("inf"), "speculative"),
        (0.0, "rate", 30.0, "sequential"),  # 33 frames/s one after another is more than the camera gives
        (0.0, "rate", 60.0, "pipelined"),
    ],
)
def test_what_serves_best(accepted: float, prefer: str, camera_hz: float, schedule: str) -> None:
    assert best(SERVER, K, accepted, prefer, camera_hz) == schedule


def test_expectations_by_hand() -> None:
    times = Times(prefill_s=8.0, drafted_s=9.0, packed_s=10.0, decode_s=4.0)
    assert expected("sequential", times, 4, 2.0, "rate") == (1 / 20, 20.0)
    assert expected("pipelined", times, 4, 2.0, "rate") == (1 / 10, 40.0)
    assert expected("speculative", times, 4, 2.0, "rate") == (1 / 11, 22.0)
    assert expected("speculative", times, 4, 2.0, "freshness") == (1 / 13, 13.0)
    assert expected("pipelined", times, 4, 2.0, "rate", camera_hz=1 / 25) == (1 / 25, 3 * 25.0 + 10.0)
    assert expected("sequential", times, 4, 2.0, "rate", camera_hz=1 / 25) == (1 / 25, 20.0)


@given(
    times=st.builds(Times, *[st.floats(1e-4, 1.0)] * 4),
    tokens=st.integers(1, 32),
    part=st.floats(0.0, 1.0),
    camera_hz=st.sampled_from([10.0, 30.0, 60.0, float("inf")]),
    prefer=st.sampled_from(PREFERENCES),
)
def test_nothing_is_better_than_the_best_by_more_than_a_twentieth(
    times: Times, tokens: int, part: float, camera_hz: float, prefer: str
) -> None:
    accepted = part * (tokens - 1)
    found = {one: expected(one, times, tokens, accepted, prefer, camera_hz) for one in SCHEDULES}
    chosen = found[best(times, tokens, accepted, prefer, camera_hz)]
    if prefer == "rate":
        assert 1.05001 * chosen.rate_hz >= max(made.rate_hz for made in found.values())
    else:
        assert chosen.age_s <= 1.05001 * min(made.age_s for made in found.values())


def test_alike_in_both_respects_nothing_changes() -> None:
    alike = Times(prefill_s=1.0, drafted_s=1.0, packed_s=1.0, decode_s=1.0)
    for schedule in SCHEDULES:
        assert best(alike, 1, 0.0, "rate", now=schedule) == schedule


def test_acceptance_is_the_mean_of_what_was_right_and_forgets() -> None:
    mode = Mode("pipelined", "rate", tokens=4)
    mode.note((1, 2, 3, 4), draft=())
    assert mode.accepted == 0.0
    mode.note((1, 2, 3, 4), draft=(1, 2, 3, 4))
    assert mode.accepted == 3.0, "the last token is of no use as a draft"
    mode.note((1, 2, 3, 4), draft=(1, 9, 3, 4))
    assert mode.accepted == 2.0
    for _ in range(200):
        mode.note((1, 2, 3, 4), draft=(9,))
    assert mode.accepted < 1e-6


@settings(max_examples=40)
@given(
    scenes=st.lists(st.integers(0, 2), min_size=1, max_size=10),
    mode=st.sampled_from(MODES),
    prefer=st.sampled_from(PREFERENCES),
    tokens=st.integers(1, 5),
    clear=st.integers(0, 10),
)
def test_every_mode_says_the_same(scenes: list[int], mode: str, prefer: str, tokens: int, clear: int) -> None:
    frames = make_frames(Mode(mode, prefer, tokens, SERVER), tokens)
    finished: list[Finished] = []
    for number, scene in enumerate(scenes):
        if number == clear:
            frames.clear()
        finished += frames.take(number, prompt(scene))
    finished += frames.drain()
    assert all(one.tokens == greedy(scenes[one.frame], tokens) for one in finished)
    numbers = [one.frame for one in finished]
    assert numbers[-1] == len(scenes) - 1 and len(set(numbers)) == len(numbers)
    if clear >= len(scenes):
        assert sorted(numbers) == list(range(len(scenes)))


def test_sequential_is_one_frame_at_a_time() -> None:
    frames = make_frames(Mode("sequential", "rate", tokens=4))
    finished = [frames.take(number, prompt(number)) for number in range(3)]
    assert [[one.frame for one in out] for out in finished] == [[0], [1], [2]]
    assert all(one.forwards == 4 and one.drafted == 0 for (one,) in finished)


def test_a_still_scene_turns_auto_to_speculation_and_a_moving_one_back() -> None:
    mode = Mode("auto", "freshness", tokens=4, times=SERVER)
    frames = make_frames(mode)
    assert mode.schedule() == "sequential"
    for number in range(4):
        (last,) = frames.take(number, prompt(0))
    assert mode.schedule() == "speculative"
    assert (last.forwards, last.accepted) == (1, 3)
    for number in range(4, 60):
        frames.take(number, prompt(number))
    assert mode.accepted < 0.5


def test_auto_learns_from_frames_that_were_not_drafted() -> None:
    mode = Mode("auto", "rate", tokens=4, times=SERVER)
    frames = make_frames(mode)
    assert mode.schedule() == "pipelined"
    for number in range(12):
        frames.take(number, prompt(0))
    assert mode.schedule() == "speculative"


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_times_are_measured_one_kind_of_forward_each(tokens: int) -> None:
    """On a machine whose forward takes a second and a hundredth for each row."""
    now = [0.0]

    def forward(segments: Sequence[Segment]) -> list[Tensor]:
        now[0] += 1.0 + 0.01 * sum(segment.x.shape[1] for segment in segments)
        return packed.forward(MODEL.language_model.model, segments)

    pool = KVPool(MODEL.config.prefix, tokens, 16, torch.device("cpu"), torch.float32)
    pipeline = TokenPipeline(MODEL, pool, tokens, forward=forward)
    times = measure(pipeline, prompt(0), clock=lambda: now[0])
    rest = tokens - 1
    wanted = (1.09, 1.09 + 0.01 * rest, 1.09 + 0.01 * rest, 1.01 if rest else 1.09)
    assert tuple(vars(times).values()) == pytest.approx(wanted)
    assert pool.free == tokens


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="mode is 'fast'"):
        Mode("fast", "rate", 4)
    with pytest.raises(ValueError, match="prefer is 'both'"):
        Mode("auto", "both", 4, SERVER)
    with pytest.raises(ValueError, match="no times; measure the four forwards first"):
        Mode("auto", "rate", 4)
    with pytest.raises(ValueError, match="tokens is 0"):
        Mode("pipelined", "rate", 0)
    with pytest.raises(ValueError, match=r"decode_s is 0\.0"):
        Times(1.0, 1.0, 1.0, 0.0)
