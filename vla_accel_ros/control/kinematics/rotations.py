"""The forms in which policies give rotations, as matrices and back.

quat_xyzw; rpy: about the fixed axes x, y, z in this order (R = Rz Ry Rx); axis_angle: the axis times the
angle; rot6d_rows and rot6d_columns: the first two rows or columns of R (Zhou et al., 2019);
rot6d_interleaved: these columns, row by row. Rows and columns look alike: one is the inverse of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

AXES: Mapping[str, tuple[str, ...]] = {
    "quat_xyzw": ("qx", "qy", "qz", "qw"),
    "rpy": ("roll", "pitch", "yaw"),
    "axis_angle": ("rx", "ry", "rz"),
    "rot6d_rows": ("r1", "r2", "r3", "r4", "r5", "r6"),
    "rot6d_columns": ("r1", "r2", "r3", "r4", "r5", "r6"),
    "rot6d_interleaved": ("r1", "r2", "r3", "r4", "r5", "r6"),
}
"""Names of the numbers of each form."""
_LEAST = 1e-3
"""What is shorter than this has no direction."""


def pinocchio() -> Any:
    """The library. Raises ValueError if it is not installed."""
    try:
        return import_module("pinocchio")
    except ImportError as error:
        raise ValueError(f"hands and paths need Pinocchio ({error}): pip install pin") from error


def matrix(numbers: np.ndarray, form: str) -> np.ndarray:
    """The rotation, float64 [3, 3], of the numbers of a form. Raises ValueError if they are none."""
    return _MATRIX[form](np.asarray(numbers, np.float64))


def numbers(rotation: np.ndarray, form: str) -> np.ndarray:
    """The numbers of a form, float64, of a rotation [3, 3]; a quaternion has qw >= 0."""
    return np.asarray(_NUMBERS[form](rotation), np.float64)


def _unit(vector: np.ndarray) -> np.ndarray:
    length = float(np.linalg.norm(vector))
    if length < _LEAST:
        raise ValueError(f"a rotation of {np.round(vector, 4).tolist()} has no direction")
    return np.asarray(vector / length)


def _of_rows(rows: np.ndarray) -> np.ndarray:
    first = _unit(rows[:3])
    second = _unit(rows[3:] - (first @ rows[3:]) * first)
    return np.stack([first, second, np.cross(first, second)])


def _quaternion(rotation: np.ndarray) -> np.ndarray:
    quaternion = pinocchio().Quaternion(rotation).coeffs()
    return np.asarray(-quaternion if quaternion[3] < 0.0 else quaternion)


_MATRIX: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "quat_xyzw": lambda x: np.asarray(pinocchio().Quaternion(_unit(x)).matrix()),
    "rpy": lambda x: np.asarray(pinocchio().rpy.rpyToMatrix(x)),
    "axis_angle": lambda x: np.asarray(pinocchio().exp3(x)),
    "rot6d_rows": _of_rows,
    "rot6d_columns": lambda x: _of_rows(x).T,
    "rot6d_interleaved": lambda x: _of_rows(x.reshape(3, 2).T.ravel()).T,
}
_NUMBERS: Mapping[str, Callable[[np.ndarray], Any]] = {
    "quat_xyzw": _quaternion,
    "rpy": lambda r: pinocchio().rpy.matrixToRpy(r),
    "axis_angle": lambda r: pinocchio().log3(r),
    "rot6d_rows": lambda r: r[:2].ravel(),
    "rot6d_columns": lambda r: r.T[:2].ravel(),
    "rot6d_interleaved": lambda r: r[:, :2].ravel(),
}
