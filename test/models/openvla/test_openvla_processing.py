"""OpenVLA's pixels, prompt, action tokens and statistics: by hand, against Pillow, and back again."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from vla_accel_ros.models.openvla.policy import ActionStats, ActionTokens, PixelNorm, openvla_prompt

PUBLISHED = ActionTokens(vocab=32000)
NUMBERS = arrays(np.float64, 7, elements=st.floats(-10, 10))


@st.composite
def stats(draw: st.DrawFn) -> ActionStats:
    low = draw(NUMBERS)
    spans = draw(arrays(np.float64, 7, elements=st.sampled_from([0.0, 0.01, 0.5, 3.0])))
    return ActionStats(low, low + spans, draw(arrays(np.bool_, 7)))


def test_six_channels_by_pillow_and_by_hand() -> None:
    image = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    squeezed = np.asarray(Image.fromarray(image).resize((28, 28), Image.Resampling.BICUBIC)) / 255.0
    dino = (squeezed - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    siglip = squeezed * 2 - 1
    ours = PixelNorm().pixels(torch.from_numpy(image), 28)
    assert ours.dtype == torch.float32
    wanted = np.concatenate((dino, siglip), axis=2).transpose(2, 0, 1)
    np.testing.assert_allclose(ours.numpy(), wanted, atol=1e-5)


def test_the_prompt_word_for_word() -> None:
    asked = openvla_prompt("Pick up the Red block.")
    assert asked == "In: What action should the robot take to pick up the red block.?\nOut:"


def test_tokens_by_hand() -> None:
    """The last id is the lowest bin; an id of a word, of padding or past the bins is the nearest action."""
    tokens = np.array([31999, 31998, 31872, 31745, 31744, 0, 2, 32063])
    bins = np.array([0, 1, 127, 254, 254, 254, 254, 0])
    np.testing.assert_allclose(PUBLISHED.to_values(tokens), -1 + (2 * bins + 1) / 255, atol=1e-15)


@given(st.integers(4, 300), arrays(np.float64, 5, elements=st.floats(-1.5, 1.5)))
def test_a_value_comes_back_as_its_bins_centre(bins: int, values: np.ndarray) -> None:
    tokens = ActionTokens(1000, bins)
    back = tokens.to_values(tokens.from_values(values))
    assert np.abs(back - np.clip(values, -1, 1)).max() <= 1 / (bins - 1) + 1e-12


@given(st.integers(2, 300))
def test_an_action_token_comes_back_as_itself(bins: int) -> None:
    tokens = ActionTokens(1000, bins)
    ids = np.arange(1000 - bins + 1, 1000)
    assert tokens.from_values(tokens.to_values(ids)).tolist() == ids.tolist()


@given(stats(), arrays(np.float64, (3, 7), elements=st.floats(-2, 2)))
def test_normalised_actions_come_back(known: ActionStats, unit: np.ndarray) -> None:
    """Every one but those that never moved in training, whose one value is the centre of the range."""
    robot = known.unnormalize(unit)
    back = known.normalize(robot)
    fixed = known.mask & (known.high == known.low)
    assert np.abs(back - unit)[:, ~fixed].max(initial=0) <= 1e-11
    assert (back[:, fixed] == 0).all()
    assert np.abs(known.unnormalize(back) - robot).max() <= 1e-11


@given(stats())
def test_the_ends_are_the_quantiles_and_the_rest_is_not_touched(known: ActionStats) -> None:
    for end, robot in ((-1.0, known.low), (1.0, known.high)):
        ours = known.unnormalize(np.full(7, end))
        np.testing.assert_allclose(ours[known.mask], robot[known.mask], atol=1e-12)
        assert (ours[~known.mask] == end).all()
