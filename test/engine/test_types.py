"""A chunk's times, and what is left of it later."""

from __future__ import annotations

import numpy as np
import pytest

from vla_accel_ros.types import Chunk

S = 1_000_000_000


def make_chunk(horizon: int = 8, stamp_ns: int = S, step_dt_s: float = 0.1) -> Chunk:
    actions = np.arange(2 * horizon, dtype=np.float32).reshape(horizon, 2)
    return Chunk(actions, stamp_ns, step_dt_s, 0, 3, np.zeros(horizon, np.float32))


def test_an_action_is_due_one_step_after_the_one_before() -> None:
    assert [make_chunk().due_ns(i) for i in (0, 1, 7)] == [S + S // 10, S + S // 5, S + 8 * S // 10]


@pytest.mark.parametrize(("passed_s", "left"), [(0.0, 8), (0.2, 6), (0.7, 1), (0.8, 0), (5.0, 0)])
def test_what_is_left_after_whole_steps_are_the_actions_themselves(passed_s: float, left: int) -> None:
    chunk = make_chunk()
    rest = chunk.rest(S + round(passed_s * S))
    assert rest.shape == (left, 2) and rest.dtype == np.float32
    assert np.array_equal(rest, chunk.actions[8 - left :])


def test_between_two_actions_it_is_interpolated() -> None:
    rest = make_chunk().rest(S + round(0.125 * S))
    assert rest.shape == (6, 2)
    np.testing.assert_allclose(rest[:, 0], 2 * (np.arange(6) + 1.25), rtol=1e-6)


def test_a_rounded_stamp_is_a_whole_step() -> None:
    chunk = make_chunk(step_dt_s=1 / 30)
    assert np.array_equal(chunk.rest(S + round(3 * S / 30)), chunk.actions[3:])


def test_before_it_was_observed_there_is_no_rest() -> None:
    with pytest.raises(ValueError, match="chunk 3 begins 2"):
        make_chunk().rest(S - S // 5)
