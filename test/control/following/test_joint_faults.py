"""A joint that is not where it is commanded to be, on either side, is named once that has lasted."""

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
    there, beyond, within = np.zeros(1), np.array([1.5 * off]), np.array([0.99 * off])
    for stamp, measured in enumerate((within, beyond, within, beyond, within)):
        assert error.take(there, measured, stamp * 99 * MS) is None
