"""Pixels, words and numbers on their way to the network: against Pillow, by hand, and back again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vla_accel_ros.models.processing.conventions import (
    Normalizer,
    clean,
    pi05_prompt,
    resize_with_pad,
    state_bins,
)

FINITE = st.floats(-100, 100)


def test_a_view_with_any_strides_is_taken() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    flipped = image[::-1, ::2, ::-1]
    assert np.array_equal(resize_with_pad(flipped, 28), resize_with_pad(flipped.copy(), 28))


def test_instructions_are_one_line_of_words() -> None:
    assert clean("  pick_up the\nblock \n") == "pick up the block"


def test_bins_by_hand() -> None:
    assert state_bins(np.array([-1.0, -0.9922, -0.992, 0.0, 0.999, 1.0, 7.0])).tolist() == [
        0,
        0,
        1,
        128,
        255,
        255,
        255,
    ]
    assert state_bins(np.array([-1.001])).tolist() == [-1]


def test_prompt_of_pi05() -> None:
    prompt = pi05_prompt("Reach_the block ", np.array([-1.0, 0.0, 1.0]))
    assert prompt == "Task: Reach the block, State: 0 128 255;\nAction: "


@given(x=arrays(np.float64, (3, 4), elements=FINITE), seed=st.integers(0, 99), known=st.integers(1, 6))
def test_normalisation_comes_back(x: np.ndarray, seed: int, known: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=known), rng.uniform(0.01, 3, known)
    for normalizer in (Normalizer.mean_std(a, b), Normalizer.quantile(a, a + b), Normalizer.identity()):
        np.testing.assert_allclose(normalizer.unnormalize(normalizer.normalize(x)), x, atol=1e-9)


def test_normalisation_is_openpis() -> None:
    x = np.array([0.3, -2.0, 5.0, 9.0])
    low, high = np.array([0.0, -3.0, 5.0]), np.array([1.0, 1.0, 5.0])
    expected = (x[:3] - low) / (high - low + 1e-6) * 2 - 1
    np.testing.assert_allclose(Normalizer.quantile(low, high).normalize(x), [*expected, 9.0], rtol=1e-12)
    inverse = (x[:3] + 1) / 2 * (high - low + 1e-6) + low
    np.testing.assert_allclose(Normalizer.quantile(low, high).unnormalize(x), [*inverse, 9.0], rtol=1e-12)
    mean_std = Normalizer.mean_std(low, high)
    np.testing.assert_allclose(mean_std.normalize(x), [*(x[:3] - low) / (high + 1e-6), 9.0], rtol=1e-12)
    np.testing.assert_allclose(mean_std.unnormalize(x), [*x[:3] * (high + 1e-6) + low, 9.0], rtol=1e-12)


@given(low=FINITE, span=st.floats(0, 10))
def test_the_lowest_value_is_in_the_lowest_bin(low: float, span: float) -> None:
    """Also for a joint that never moved in the training data."""
    normalizer = Normalizer.quantile(np.array([low]), np.array([low + span]))
    assert state_bins(normalizer.normalize(np.array([low]))).tolist() == [0]


def test_fewer_dimensions_than_statistics_use_the_first() -> None:
    normalizer = Normalizer.mean_std(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    np.testing.assert_allclose(normalizer.normalize(np.array([3.0])), [1.0], rtol=1e-6)
