"""Text only in the slack of actions: the token rate of the product's text policy beside frames.

Frames, actions and text are requests through the scheduler of one engine (engine.rules.text).
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.policies import policy_of
from shared.subjects import random_observation
from shared.timing import Window
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Ask, Request, Waits
from vla_accel_ros.engine.scheduler import Stream
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.types import Observation

BESIDE = 4
"""Slots for frames that no answer holds."""


def text_in_slack(
    model: Pi, seeds: Sequence[int], views: int, prompt: int, frames: int, steps: int, tokens: int,
    most: int, share: float,
) -> dict[str, float]:  # fmt: skip
    """Texts only in the slack at a `share` of the actions' highest rate, with as many open as fit in `most`.

    Frames follow each other at once. Frames that are ahead of a camera with (1 - share) of the rate without
    text have slack. Returns both rates and tokens/s.
    """
    policy = policy_of(model)
    observations = [random_observation(policy, views, prompt, seed=seed) for seed in seeds]
    slots = most + BESIDE
    engine = Engine(policy, fast=True, steps=steps, slots=slots, answers=most, answer_tokens=tokens)
    engine.prepare([views], [prompt])
    scheduler, device = engine.scheduler, policy.device
    for observation in observations:
        _act(engine, observation)
    with Window(device) as alone:
        for number in range(frames):
            _act(engine, observations[number % len(observations)])
    period_s = alone.elapsed_s / frames / (1.0 - share)
    requests, due_s = list[Request](), 0.0
    scheduler.streams[""] = Stream(due_s=lambda: due_s)
    with Window(device) as shared_window:
        begin_s = scheduler.clock()
        for number in range(frames):
            due_s = begin_s + (number + 1) * period_s
            ask = None
            if sum(not request.finished for request in requests) < most:
                ask = Request(Ask(max_tokens=tokens), waits=Waits.ROOM)
                requests.append(ask)
            _act(engine, observations[number % len(observations)], ask)
            while scheduler.step():
                pass
    token_count = sum(len(request.tokens) for request in requests)
    scheduler.cancel(*scheduler.requests)
    for request in requests:
        if request.error is not None:
            raise request.error
    return {
        "alone_hz": round(frames / alone.elapsed_s, 2),
        "with_text_hz": round(frames / shared_window.elapsed_s, 2),
        "kept": round(alone.elapsed_s / shared_window.elapsed_s, 3),
        "tokens_s": round(token_count / shared_window.elapsed_s, 1),
    }


def _act(engine: Engine, observation: Observation, ask: Request | None = None) -> None:
    """A frame's actions, on the host, and a text about it, if there is to be one."""
    with engine.observe(observation) as prefix:
        engine.act(prefix)
    if ask is not None:
        engine.scheduler.submit(ask)
