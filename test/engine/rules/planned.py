"""Plain requests for policies to plan with, where nothing is computed."""

from __future__ import annotations

import numpy as np

from vla_accel_ros.engine.request import Act, Ask, Observe, Request, Status, Waits
from vla_accel_ros.types import Observation


def make_act(robot: str = "", words: str = "lift", stream: bool = True, begun: bool = False) -> Request:
    """An action request on a frame that nobody acted on yet, as the scheduler shows it to a policy."""
    request = Request(Act(), robot, waits=Waits.NEWS if stream else Waits.ROOM)
    request.instruction, request.fresh = words, True
    if begun:
        request.status = Status.RUNNING
    return request


def make_again(robot: str = "", words: str = "lift") -> Request:
    """One for newer joints on a frame that was acted on."""
    request = make_act(robot, words)
    request.fresh = False
    return request


def make_observe(robot: str = "", priority: int = 0) -> Request:
    return Request(Observe(), robot, priority=priority)


def make_ask(robot: str = "", begun: bool = False) -> Request:
    request = Request(Ask(), robot)
    if begun:
        request.status = Status.RUNNING
    return request


def make_frame(robot: str = "", images: int = 2, priority: int = 0) -> Request:
    """To observe something that is known already."""
    request = make_observe(robot, priority)
    pixels = {f"camera {index}": np.zeros((2, 2, 3), np.uint8) for index in range(images)}
    request.wish = Observe(Observation(pixels, np.zeros(2, np.float32), "lift", 0, robot=robot))
    return request


def make_waiting(robot: str = "") -> Request:
    return make_act(robot, stream=False)
