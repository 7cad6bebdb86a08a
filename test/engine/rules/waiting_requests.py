"""Requests that wait, as a policy is shown them."""

from __future__ import annotations

import numpy as np
from planned import make_act, make_observe

from vla_accel_ros.engine.request import Observe, Request
from vla_accel_ros.types import Observation


def make_frame(robot: str = "", images: int = 2, priority: int = 0) -> Request:
    """To observe something that is known already."""
    request = make_observe(robot, priority)
    pixels = {f"camera {index}": np.zeros((2, 2, 3), np.uint8) for index in range(images)}
    request.wish = Observe(Observation(pixels, np.zeros(2, np.float32), "lift", 0, robot=robot))
    return request


def make_waiting(robot: str = "") -> Request:
    return make_act(robot, stream=False)
