"""A scheduling rule: the newest request goes first.

A rule chooses what a lane of the GPU runs next, and nothing else: it has no torch, no clock and no threads.
So the same object runs in the engine, in a fleet's scheduler and in simulated time, and its test needs no
GPU: give it requests and times, and assert what it chooses.

pyproject.toml beside this file names it. Once installed (`pip install ./examples`), an engine finds it:

    Engine(policy, scheduling="newest_first")
"""

from __future__ import annotations

import math

from vla_accel_ros.engine.request import MicroBatch, Requests
from vla_accel_ros.engine.rules.rule import Rule, Setup


class NewestFirst(Rule):
    """Runs one request at a time, each to its end. Old requests starve under load: this is an example."""

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        # `ready` is in the order of submission. None leaves the lane idle until something new arrives.
        if not ready:
            return None
        newest = ready[-1]
        # A micro-batch names the stage, the requests that share one launch, and how many steps they take;
        # 0 is all that are left. Requests can share a launch only if they are at the same stage.
        return MicroBatch(newest.stage, (newest,), steps=0)


def make(setup: Setup) -> NewestFirst:
    """What the entry point names. A rule that plans takes its durations from `setup.profile`, never from
    constants."""
    return NewestFirst()
