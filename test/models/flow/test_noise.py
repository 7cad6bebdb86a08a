"""Noise that is a function of what it is for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.models.flow.noise import coherent, fresh

STEP_NS = 100_000_000
STAMPS = st.integers(0, 10**12).map(lambda step: step * STEP_NS)


@given(stamp_ns=STAMPS, passed=st.integers(0, 9), columns=st.integers(1, 33), seed=st.integers(0, 2**63))
def test_chunks_that_overlap_begin_alike_where_they_speak_of_the_same_time(stamp_ns, passed, columns, seed):
    first = coherent(seed, stamp_ns, 0.1, (10, columns))
    later = coherent(seed, stamp_ns + passed * STEP_NS, 0.1, (10, columns))
    np.testing.assert_array_equal(first[passed:], later[: 10 - passed])
    assert not np.isin(later[10 - passed :], first).any()


def test_another_seed_another_request_and_another_time_give_other_noise():
    made = [
        coherent(0, 0, 0.1, (8, 6)),
        coherent(1, 0, 0.1, (8, 6)),
        coherent(0, 80 * STEP_NS, 0.1, (8, 6)),
        fresh(0, 0, (8, 6)),
        fresh(0, 1, (8, 6)),
        fresh(1, 0, (8, 6)),
    ]
    for place, one in enumerate(made):
        assert all(not np.isclose(one, other).any() for other in made[:place])
    np.testing.assert_array_equal(made[0], coherent(0, 0, 0.1, (8, 6)))
    np.testing.assert_array_equal(made[3], fresh(0, 0, (8, 6)))


def test_coherent_noise_is_normal_and_its_columns_and_rows_are_independent():
    rows = coherent(5, 0, 0.1, (200_000, 7)).astype(np.float64)
    assert rows.dtype == np.float64 and np.isfinite(rows).all()
    np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=0.01)
    np.testing.assert_allclose(np.cov(rows.T), np.eye(7), atol=0.015)
    np.testing.assert_allclose((rows[1:] * rows[:-1]).mean(axis=0), 0.0, atol=0.01)
    np.testing.assert_allclose((rows**4).mean(axis=0), 3.0, atol=0.1)
    assert coherent(5, 0, 0.1, (8, 6)).dtype == np.float32
