"""States and actions of an embodiment: ranges, relative numbers, and poses composed in the hand's frame."""

from __future__ import annotations

import numpy as np
import pytest

from vla_accel_ros.models.groot.units import ActionGroup, Units, rotation
from vla_accel_ros.models.processing.ranges import Range


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def turned(axis: int, angle: float) -> np.ndarray:
    """A rotation matrix about an axis."""
    first, second = (axis + 1) % 3, (axis + 2) % 3
    turn = np.eye(3)
    turn[first, first] = turn[second, second] = np.cos(angle)
    turn[first, second], turn[second, first] = -np.sin(angle), np.sin(angle)
    return turn


def pose(place: list[float], turn: np.ndarray) -> np.ndarray:
    return np.concatenate((place, turn[:2].reshape(6)))


def hand() -> Units:
    """A relative pose and an absolute gripper, both in ranges of their own."""
    wide = Range(np.full(10, -4.0, np.float32), np.full(10, 4.0, np.float32), clips=True)
    return Units(wide, wide, (ActionGroup("eef_9d", slice(9), slice(9), pose=True),), steps=2)


def test_a_number_that_did_not_move_is_zero_and_comes_back_where_it_was() -> None:
    still = Range(numbers(0, 5), numbers(2, 5), clips=True)
    assert still.normalize(numbers(0.5, 9)).tolist() == [-0.5, 0.0]
    assert still.unnormalize(numbers(-0.5, 0.7)[None])[0].tolist() == [0.5, 5.0]


def test_numbers_beyond_the_range_are_cut_only_where_training_did() -> None:
    ends = numbers(0), numbers(2)
    cut, whole = Range(*ends, clips=True), Range(*ends)
    assert (cut.normalize(numbers(3)).tolist(), whole.normalize(numbers(3)).tolist()) == ([1.0], [2.0])
    chunks = [Units(actions, actions).to_robot(numbers(2)[None], numbers(0)) for actions in (cut, whole)]
    assert [chunk.tolist() for chunk in chunks] == [[[2.0]], [[3.0]]]


def test_every_step_of_a_chunk_has_a_range_of_its_own_and_later_ones_are_cut() -> None:
    by_step = Range(numbers(-1, -2)[:, None], numbers(1, 2)[:, None], clips=True)
    state = Range(numbers(0), numbers(1), clips=True)
    units = Units(state, by_step, (ActionGroup("joint", slice(1), slice(1)),), steps=2)
    chunk = units.to_robot(np.full((5, 1), 0.5, np.float32), np.array([10.0]))
    assert chunk.tolist() == [[10.5], [11.0]]
    assert units.to_network(chunk[:1], np.array([10.0])).tolist() == [[0.5]]


def test_a_displacement_is_in_the_frame_of_the_hand() -> None:
    """The hand has turned a quarter about z: its own x is the world's y."""
    state = np.append(pose([1.0, 2.0, 3.0], turned(2, np.pi / 2)), 0.0)
    displacement = np.append(pose([0.5, 0.0, 0.0], turned(2, np.pi / 2)), 0.0)
    (moved, _) = hand().to_robot(np.array([displacement / 4] * 2, np.float32), state)
    assert moved[:3] == pytest.approx([1.0, 2.5, 3.0], abs=1e-6)
    assert rotation(moved[3:9]) == pytest.approx(turned(2, np.pi), abs=1e-6)


def test_poses_come_back_as_they_went() -> None:
    rng = np.random.default_rng(4)
    state = np.append(pose([0.3, -0.2, 0.9], turned(0, 0.4) @ turned(1, -1.1)), 0.5)
    targets = np.stack(
        [np.append(pose(list(rng.normal(size=3)), turned(2, a) @ turned(0, 0.3)), 0.1) for a in (0.2, 2.5)]
    )
    back = hand().to_robot(hand().to_network(targets, state), state)
    assert back == pytest.approx(targets, abs=1e-5)


def test_rows_that_are_nearly_a_rotation_are_made_one() -> None:
    turn = rotation(np.array([2.0, 0.1, 0.0, 0.3, 0.5, 0.1]))
    assert turn @ turn.T == pytest.approx(np.eye(3), abs=1e-12)
    assert np.linalg.det(turn) == pytest.approx(1.0)
