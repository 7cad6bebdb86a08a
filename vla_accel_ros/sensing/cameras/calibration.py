"""A camera's calibration, from the YAML file that ROS's calibrators write (camera_info format).

It reads only what CameraInfo carries. Every number is checked here, since an incomplete matrix would be
published as a picture's geometry.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vla_accel_ros.contract.files import bounded_yaml

_SHOWN = reprlib.Repr()
_SHOWN.maxlist = 12
_IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)


@dataclass(frozen=True)
class Calibration:
    """k [9] camera matrix, r [9] rectification, p [12] projection, row by row; d: distortion coefficients."""

    width: int
    height: int
    model: str
    d: tuple[float, ...]
    k: tuple[float, ...]
    r: tuple[float, ...]
    p: tuple[float, ...]

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file. Raises ValueError, one sentence with file, field and fix; OSError if it is
        unreadable."""
        try:
            fields = bounded_yaml.load(Path(path).read_text())
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a YAML file: give the one that camera_calibration wrote"
            ) from error
        if not isinstance(fields, dict):
            raise ValueError(f"{path} has no fields: give the one that camera_calibration wrote")

        def size(name: str) -> int:
            number = fields.get(name)
            if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= 65535:
                raise ValueError(f"{path}: {name} is {number!r}: give the image's size in pixels")
            return number

        def numbers(
            name: str, count: int | None, default: tuple[float, ...] | None = None
        ) -> tuple[float, ...]:
            matrix: Any = fields.get(name)
            if matrix is None and default is not None:
                return default
            data: Any = matrix.get("data") if isinstance(matrix, dict) else None
            values = tuple(map(_number, data)) if isinstance(data, list) else (math.nan,)
            if not all(map(math.isfinite, values)) or (count is not None and len(values) != count):
                expected = "numbers" if count is None else f"{count} numbers, row by row"
                raise ValueError(f"{path}: {name}.data is {_SHOWN.repr(data)}: give {expected}")
            return values

        k = numbers("camera_matrix", 9)
        return cls(
            width=size("image_width"),
            height=size("image_height"),
            model=str(fields.get("distortion_model", "plumb_bob")),
            d=numbers("distortion_coefficients", None, (0.0,) * 5),
            k=k,
            r=numbers("rectification_matrix", 9, _IDENTITY),
            p=numbers("projection_matrix", 12, (*k[0:3], 0.0, *k[3:6], 0.0, *k[6:9], 0.0)),
        )


def _number(given: Any) -> float:
    """A number as YAML gives it; nan if it is none. ROS writes 5e-05, which is a text for YAML 1.1."""
    try:
        return math.nan if isinstance(given, bool) else float(given)
    except (ValueError, TypeError, OverflowError):
        return math.nan
