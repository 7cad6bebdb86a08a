"""Plain requests for policies to plan with, where nothing is computed."""

from __future__ import annotations

from vla_accel_ros.engine.request import Act, Ask, Observe, Request, Status, Waits


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
