"""A joint that is not where it is commanded to be, on either side, or that stands still while it is commanded
to move, is named once that has lasted.
"""

from __future__ import annotations

import numpy as np
import pytest

from vla_accel_ros.control.following.joint_faults import FollowingError

MS = 1_000_000


@pytest.mark.parametrize("off", [0.3, -0.3], ids=["behind", "ahead"])
def test_a_joint_on_either_side_of_its_command_is_named(off: float) -> None:
    error = FollowingError(rad=np.array([0.1, 0.2]), s=np.array([0.5, 0.25]))
    commanded = np.array([1.0, -2.0])
    measured = commanded - np.array([0.0, off])
    assert [error.take(commanded, measured, stamp * MS) for stamp in (0, 100, 249, 250)] == [
        None,
        None,
        None,
        1,
    ]


@pytest.mark.parametrize("off", [0.2, -0.2])
def test_within_its_distance_or_for_a_moment_is_borne(off: float) -> None:
    error = FollowingError(rad=np.array([0.2]), s=np.array([0.1]))
    origin, beyond, within = np.zeros(1), np.array([1.5 * off]), np.array([0.99 * off])
    for stamp, measured in enumerate((within, beyond, within, beyond, within)):
        assert error.take(origin, measured, stamp * 99 * MS) is None


def test_a_joint_that_stands_still_while_its_command_goes_to_and_fro_is_named() -> None:
    error = FollowingError(rad=np.array([0.45, 0.45]), s=np.array([0.2, 0.2]))
    for stamp in range(0, 3000, 10):
        swing = 0.3 * np.sin(2e-3 * np.pi * stamp)
        joint = error.take(np.array([swing, swing]), np.array([swing, 0.0]), stamp * MS)
        if joint is not None:
            break
    assert joint == 1 and 750 < stamp < 1250, "within a swing it was commanded over 0.6 rad"
    words = error.sentence(1, "elbow", swing, 0.0)
    assert "elbow does not follow" in words and "-0.30" in words and "0.30" in words


def test_a_joint_that_stands_while_it_is_pressed_against_something_is_borne() -> None:
    error = FollowingError(rad=np.array([0.45]), s=np.array([0.2]))
    for stamp in range(0, 10_000, 10):
        pressed = np.array([0.2 + 0.2 * np.sin(2e-3 * np.pi * stamp)])
        assert error.take(pressed, np.zeros(1), stamp * MS) is None
