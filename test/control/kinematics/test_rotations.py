"""Forms of rotations; numbers of others' code are in test/data/hand_conventions.json (see test_hand.py)."""

from __future__ import annotations

import numpy as np
import pytest

from vla_accel_ros.control.kinematics.rotations import AXES, matrix, numbers

QUARTER_Z = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
"""A quarter turn about z: x goes to y."""


@pytest.mark.parametrize(
    ("form", "quarter"),
    [
        ("quat_xyzw", [0, 0, 0.5**0.5, 0.5**0.5]),
        ("rpy", [0, 0, np.pi / 2]),
        ("axis_angle", [0, 0, np.pi / 2]),
        ("rot6d_rows", [0, -1, 0, 1, 0, 0]),
        ("rot6d_columns", [0, 1, 0, -1, 0, 0]),
        ("rot6d_interleaved", [0, -1, 1, 0, 0, 0]),
    ],
)
def test_form_gives_a_quarter_turn_and_back(form, quarter):
    np.testing.assert_allclose(matrix(np.array(quarter, float), form), QUARTER_Z, atol=1e-12)
    np.testing.assert_allclose(numbers(QUARTER_Z, form), quarter, atol=1e-12)
    assert len(AXES[form]) == len(quarter)


def test_rpy_turns_about_fixed_axes_x_first():
    """Bridge's and DROID's: a roll of a quarter, then a yaw of a quarter, about the axes of the base."""
    turned = matrix(np.array([np.pi / 2, 0.0, np.pi / 2]), "rpy")
    np.testing.assert_allclose(turned @ [0, 1, 0], [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(turned @ [1, 0, 0], [0, 1, 0], atol=1e-12)


def test_rows_and_columns_of_one_rotation_are_inverse_to_each_other():
    rows = numbers(matrix(np.array([0.3, -0.4, 0.8]), "rpy"), "rot6d_rows")
    np.testing.assert_allclose(matrix(rows, "rot6d_columns"), matrix(rows, "rot6d_rows").T, atol=1e-12)


def test_a_quaternion_of_any_length_is_taken_and_one_without_is_none():
    np.testing.assert_allclose(matrix(np.array([0, 0, 2.0, 2.0]), "quat_xyzw"), QUARTER_Z, atol=1e-12)
    for form in ("quat_xyzw", "rot6d_rows", "rot6d_columns", "rot6d_interleaved"):
        with pytest.raises(ValueError, match=r"\[0\.0, 0\.0, 0\.0"):
            matrix(np.zeros(len(AXES[form])), form)
