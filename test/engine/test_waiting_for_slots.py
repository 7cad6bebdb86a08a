"""Requests that wait for room wait for a slot, too, and questions leave frames and actions theirs."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_observation, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import PoolExhausted, Prefix
from vla_accel_ros.engine.request import ASK, OBSERVE, Ask, Observe, Request, Waits, Wish

QUESTIONS = [f"what is {thing}" for thing in ("red", "blue", "green", "there", "red red", "blue blue")]


@pytest.mark.parametrize("want", [OBSERVE, ASK])
def test_what_waits_for_room_begins_once_a_slot_is_free(want: str) -> None:
    engine = Engine(make_policy("pi0"), steps=2)
    held = [engine.observe(make_observation(number)) for number in range(engine.config.slots)]
    seen = make_observation(9) if want == OBSERVE else None
    wish: Wish = Observe(seen) if want == OBSERVE else Ask(QUESTIONS[0], 2)
    at_once = engine.scheduler.submit(Request(wish))
    with pytest.raises(PoolExhausted):
        engine.scheduler.wait(at_once)
    waiting = engine.scheduler.submit(Request(wish, waits=Waits.ROOM))
    assert not engine.scheduler.step() and not waiting.begun
    held[0].release()
    result = engine.scheduler.wait(waiting).result
    for prefix in (*held, result):
        if isinstance(prefix, Prefix):
            prefix.release()
    assert engine.runner.pool.free == engine.config.slots - 1


@pytest.mark.parametrize("options", [{}, {"slots": 4}, {"slots": 6, "staggered": 2}])
def test_questions_of_a_stream_leave_frames_and_actions_their_slots(options: dict[str, Any]) -> None:
    """Each holds a prefix of its own, so as many as there are places would take all slots."""
    engine = Engine(make_policy("pi0"), steps=3, answers=4, **options)
    engine.observe(make_observation()).release()
    asked = [Request(Ask(question=words, max_tokens=8), waits=Waits.NEWS) for words in QUESTIONS]
    for request in asked:
        engine.scheduler.submit(request)
    at_once = 0
    for number in range(1, 100):
        with engine.observe(make_observation(number)) as prefix:
            engine.scheduler.step()
            at_once = max(at_once, sum(request.begun for request in engine.scheduler.requests))
            engine.act(prefix)
        if not engine.scheduler.requests:
            break
    assert all(request.finished and request.error is None and request.result for request in asked)
    assert at_once == max(1, engine.config.slots - 3 - max(0, engine.config.staggered - 1))
