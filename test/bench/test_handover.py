"""How smooth the joints between chunks are at the motor, against the ways a chunk is usually handed over."""

from __future__ import annotations

import numpy as np
import pytest

from handovers import delays
from handovers.scene import Motors, measure, reference
from handovers.styles import Message

S = 1_000_000_000


@pytest.mark.parametrize("from_desired", [True, False])
def test_blend_stays_near_the_reference_whatever_the_controller_starts_from(from_desired: bool) -> None:
    """The reference peaks at 4.9 rad/s^2 and 1.57 rad/s."""
    row = measure("our motion, blend", from_desired)
    assert row.acceleration <= 15.0
    assert row.velocity <= 2.0
    assert row.error <= 0.010


@pytest.mark.parametrize("from_desired", [True, False])
def test_async_is_continuous_too(from_desired: bool) -> None:
    assert measure("our motion, async", from_desired).acceleration <= 50.0


def test_replacing_whole_chunks_or_sending_points_jerks_the_motors() -> None:
    for from_desired in (True, False):
        assert measure("full chunk, stamped at observation", from_desired).acceleration > 5000.0
        assert measure("single point per tick, due at once", from_desired).acceleration > 10_000.0


def test_a_blend_without_the_committed_path_jerks_and_hangs_on_the_controllers_parameter() -> None:
    """Why the trajectory buffer repeats what is commanded already."""
    style = "+ sender blends over 200 ms"
    assert measure(style, from_desired=True).acceleration > 500.0
    assert measure(style, from_desired=False).acceleration > 5000.0


def test_splines_of_the_controller_do_not_mend_chunks_without_velocities() -> None:
    """They begin at rest, whatever the joints do."""
    style = "past dropped, first point a step ahead"
    assert measure(style, True, positions_upsampling=True).acceleration > 500.0
    assert measure("our motion, blend", True, positions_upsampling=True).acceleration <= 15.0


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.15])
def test_what_is_learnt_of_a_delay_makes_its_hand_overs_smooth(delay_s: float) -> None:
    result = delays.measure("async", delay_s)
    assert result.adapted <= 50.0
    assert result.fixed > 1000.0 if delay_s > 2 * delays.LEAD_S else result.fixed <= 50.0
    assert min(max(delay_s, delays.LEAD_S), delays.LEAD_MAX_S) <= result.lead_s <= delay_s + 0.03


def test_the_reference_is_what_the_scene_says() -> None:
    assert reference(0.5).tolist() == pytest.approx([0.5, 0.0])


def test_upsampled_positions_go_through_all_points_and_rest_at_both_ends() -> None:
    two, points = (
        Motors(True, positions_upsampling=True),
        np.array([[0, 0], [0.1, 0.2], [0.3, 0.1], [0.2, 0]]),
    )
    two.receive(Message(S, [0, S // 10, 3 * S // 10, 4 * S // 10], points, None), S)
    for t_s, point in zip((0.1, 0.3, 0.4), points[1:]):
        assert two.desired(S + round(t_s * S)).position == pytest.approx(point)
    times = S + np.arange(1, 399) * S // 1000
    speeds = np.array([two.desired(int(t)).velocity for t in times])
    assert np.abs(speeds[[0, -1]]).max() < 0.2 < np.abs(speeds).max()
    accelerations = np.diff(speeds, axis=0) * 1000
    assert np.abs(np.diff(accelerations, axis=0)).max() < 2.0, "continuous also from one segment to the next"
