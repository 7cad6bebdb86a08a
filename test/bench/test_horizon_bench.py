"""What bench/horizon.py makes of chunks and episodes."""

from __future__ import annotations

import numpy as np
import pytest
from horizons import front, signals
from horizons.front import Cell
from horizons.signals import Seen, spearman

from vla_accel_ros.tools.demo_policy.rollout import Episode
from vla_accel_ros.types import Chunk

STEP_NS = 100_000_000


def make_chunk(stamp: int, actions: np.ndarray, sizes: np.ndarray | None = None) -> Chunk:
    """stamp: in steps."""
    last = np.zeros(len(actions), np.float32) if sizes is None else sizes[-1]
    return Chunk(actions, stamp * STEP_NS, 0.1, stamp, stamp, last, step_magnitudes=sizes)


def make_episode(won: bool, time_s: float, load: float) -> Episode:
    figures = {"jerk": 1.0, "answers_right": 0, "answers_asked": 0, "tracking": 0.0, "seam": 0.0}
    return Episode("t", "reach", 0, "normal", won, time_s, **figures, chunks_per_s=load, horizon=8.0)  # type: ignore[arg-type]


def test_rank_correlation() -> None:
    a = np.array([1.0, 2, 3, 4])
    assert spearman(a, a**3) == pytest.approx(1) and spearman(a, -a) == pytest.approx(-1)
    assert spearman(a, np.array([1.0, 2, 2, 3])) == pytest.approx(3 / np.sqrt(10)), "ties have mean ranks"
    assert np.isnan(spearman(a, np.ones(4))) and np.isnan(spearman(a[:2], a[:2]))


def test_what_a_later_chunk_says_is_compared_with_the_action_for_the_same_time() -> None:
    chunk = make_chunk(0, np.arange(1.0, 7)[:, None])  # action i is for i + 1 steps
    later = [make_chunk(2, np.array([[3.5], [4.5], [9.0]])), make_chunk(4, np.array([[5.25], [6.25]]))]
    error = signals.said_later(chunk, [chunk, *later])
    np.testing.assert_allclose(error, [np.nan, np.nan, 0.5, 0.5, 0.25, 0.25])


def test_a_signal_that_is_the_error_correlates_wholly_and_one_that_is_the_place_not_at_the_same_place() -> (
    None
):
    rng, rows = np.random.default_rng(0), []
    for number in range(8):
        wrong = rng.uniform(0.1, 1.0, 6)
        sizes = np.stack([np.ones(6), wrong]).astype(np.float32)
        chunk = make_chunk(0, np.zeros((6, 1)), sizes)
        samples = np.concatenate([np.zeros((2, 6, 1)), np.broadcast_to(wrong[:, None], (3, 6, 1))])
        rows.append(
            (number, [Seen(chunk, None, samples), Seen(make_chunk(1, wrong[1:, None]), None, samples[:0])])
        )
    table = signals.tabled(rows)
    assert len(table.place) == 48 and set(table.episode) == set(range(8))
    found = {(row["signal"], row["error"]): row for row in signals.correlations(table)}
    assert found["last_update", "mean"]["overall"]["rho"] == pytest.approx(1)
    assert found["update_ratio", "mean"]["at_place"]["rho"] == pytest.approx(1)
    assert found["agreement", "mean"]["n"] == 0 and found["agreement", "mean"]["overall"]["rho"] is None
    assert found[signals.PLACE, "mean"]["at_place"]["rho"] is None
    assert any("- | -" in line for line in signals.lines(found.values()))


def test_what_succeeds_as_often_with_less_load_is_on_the_front() -> None:
    def cell(horizon: str, mode: str = "on demand") -> Cell:
        return Cell("reach", "moved", mode, horizon)

    found = {
        cell("a"): [make_episode(True, 1.0, 8.0)] * 2,
        cell("b"): [make_episode(True, 2.0, 4.0)] * 2,
        cell("c"): [make_episode(True, 2.0, 5.0), make_episode(False, 4.0, 5.0)],
        cell("d"): [make_episode(True, 2.0, 1.0), make_episode(False, 4.0, 1.0)],
        cell("a", "block"): [make_episode(False, 4.0, 9.0)],
    }
    rows = front.summary(found)
    assert [row["on_front"] for row in rows] == [False, True, False, True, True]
    assert rows[0]["actions"] == pytest.approx(30 / 8) and rows[2]["won"] == 1 and rows[2]["n"] == 2
    assert rows[2]["time_s"]["median"] == 2.0, "of those that succeeded"
    text = "\n".join(front.lines(rows))
    assert "| reach, moved, on demand | `b` * | 2 of 2 (34 to 100 %) | 7.5 | 4.00 |" in text


def test_every_cell_is_played_under_a_horizon_that_there_is() -> None:
    cells = front.cells()
    assert len(set(cells)) == len(cells)
    assert {cell.job(3).seed for cell in cells} == {3}
    assert {cell.condition for cell in cells} == {"moved", "static"}
