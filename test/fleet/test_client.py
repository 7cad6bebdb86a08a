"""When a robot asks a fleet's scheduler, which answers it takes, and what it says while none comes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer
from vla_accel_ros.fleet.robot.client import (
    ANNOUNCE_S,
    HEARTBEAT_S,
    LARGE,
    LONGEST_RETRY_S,
    Ask,
    ClientSettings,
    FleetClient,
    Step,
)
from vla_accel_ros.types import Chunk

S = 1_000_000_000
MS = 1_000_000
START = 1_000 * S
STEP_S = 0.1
SETTINGS = ClientSettings(max_age_s=2.0, step_dt_s=STEP_S, ask_at_s=0.5)
ADMISSION = Admission("engine", "/left", "scheduler", True)


def make_client(**changes) -> FleetClient:
    """One that is admitted, at START, and has something to do."""
    client = FleetClient("engine", "/left", replace(SETTINGS, **changes))
    client.begin(START)
    assert client.step(START) == Step(announce=True)
    assert client.admitted(ADMISSION, START)
    client.instruct("reach the red block", START)
    return client


def make_answer(ask: Ask, stamp_ns: int, **changes) -> ChunkAnswer:
    """A chunk of 20 actions, 10 of which are to be executed: 1 s."""
    chunk = Chunk(np.zeros((20, 6), np.float32), stamp_ns, STEP_S, 1, 1, np.zeros(0), execution_horizon=10)
    answer = ChunkAnswer(ask.round, ask.attempt, "scheduler", ask.sent_ns, chunk)
    return replace(answer, **changes)


def refusal(ask: Ask, why: str, retry_s: float) -> ChunkAnswer:
    return make_answer(ask, START, chunk=None, refusal=why, retry_s=retry_s)


def asked(client: FleetClient, now_ns: int, age_s: float = 0.1) -> tuple[Ask, int]:
    """What it asks for now, and the stamp of the observation."""
    assert client.step(now_ns).observe
    stamp_ns = now_ns - round(age_s * S)
    return client.ask(stamp_ns, now_ns), stamp_ns


def moving(client: FleetClient, now_ns: int) -> int:
    """Have a chunk taken now, of an observation 0.1 s old; when its horizon is over."""
    ask, stamp_ns = asked(client, now_ns)
    assert client.answered(make_answer(ask, stamp_ns), now_ns) is not None
    return stamp_ns + S


def test_it_asks_at_once_and_then_when_little_motion_is_left():
    client = make_client()
    ends_ns = moving(client, START)
    due_ns = ends_ns - round(SETTINGS.ask_at_s * S)
    assert not client.step(due_ns - 1).observe
    ask, _ = asked(client, due_ns)
    assert (ask.round.number, ask.attempt, ask.remaining, ask.stalled_s) == (2, 1, 5, 0.0)
    assert ask.executed_s == pytest.approx(0.4)
    assert not client.step(due_ns + 1).observe  # one request at a time


def test_a_new_instruction_is_another_task_and_is_asked_for_at_once():
    client = make_client()
    moving(client, START)
    before, _ = asked(client, START + 600 * MS)
    client.instruct("put the red block on the pad", START + 650 * MS)
    ask, stamp_ns = asked(client, START + 650 * MS)
    assert ask.round.task == before.round.task + 1 and ask.round.number == 1
    assert client.answered(make_answer(before, START + 500 * MS), START + 700 * MS) is None
    client.instruct("put the red block on the pad", START + 700 * MS)  # said again: the same task
    assert client.answered(make_answer(ask, stamp_ns), START + 700 * MS) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduler": "another"},
        {"attempt": 2},
        {"engine": "another"},
        {"robot": "/right"},
        {"task": 17},
        {"number": 2},
    ],
)
def test_an_answer_for_somebody_else_is_for_nobody(changes):
    client = make_client()
    ask, stamp_ns = asked(client, START)
    answer = make_answer(ask, stamp_ns)
    if changes.keys() & {"scheduler", "attempt"}:
        other = replace(answer, **changes)
    else:
        other = replace(answer, round=replace(ask.round, **changes))
    assert client.answered(other, START + MS) is None
    assert client.counts["foreign"] == 1
    assert client.answered(answer, START + 2 * MS) is not None
    assert client.answered(answer, START + 3 * MS) is None  # a duplicate
    assert client.counts["rounds"] == 1 and client.counts["foreign"] == 2


def test_a_chunk_of_another_observation_is_not_taken():
    client = make_client()
    ask, stamp_ns = asked(client, START)
    assert client.answered(make_answer(ask, stamp_ns + 1), START + MS) is None
    assert client.answered(make_answer(ask, stamp_ns + 2 * S), START + MS) is None


def test_a_request_without_an_answer_is_lost_in_time_and_asked_again_with_a_new_observation():
    client = make_client()
    ask, _ = asked(client, START)
    assert ask.within_s == pytest.approx(0.9 * 2.0 - 0.1)
    deadline_ns = START + round(ask.within_s * S)
    assert client.deadline_ns(START) == deadline_ns
    assert not client.step(deadline_ns).observe
    again, _ = asked(client, deadline_ns + 1)
    assert (again.round, again.attempt) == (ask.round, 2)
    assert client.counts["lost"] == 1
    assert client.waiting_for(deadline_ns + 2 * S) == ("no answer from the fleet's scheduler", " for 3 s")
    at_once = START + S - MS
    assert client.waiting_for(at_once) == ("no answer from the fleet's scheduler", "")


@pytest.mark.parametrize(("size", "told"), [(LARGE - 1, ""), (1_843_200, "; its images have 1.8 MB: over a")])
def test_a_large_request_without_an_answer_names_what_makes_it_smaller(size, told):
    client = make_client()
    ask, stamp_ns = asked(client, START)
    deadline_ns = START + round(ask.within_s * S) + 1
    assert client.step(deadline_ns).observe
    client.ask(stamp_ns + S, deadline_ns, size)
    _, detail = client.waiting_for(deadline_ns + S)
    assert detail.startswith(f" for 2 s{told}") and ("fleet_images to jpeg" in detail) == bool(told)


def test_an_answer_to_an_earlier_attempt_is_taken_while_it_can_move_the_arm():
    client = make_client(within_s=0.5)
    first, stamp_ns = asked(client, START)
    asked(client, START + 501 * MS)
    taken = client.answered(make_answer(first, stamp_ns), START + 600 * MS)
    assert taken is not None and taken.stamp_ns == stamp_ns
    assert (client.counts["late"], client.counts["lost"]) == (1, 0)
    assert client.round.number == 2


def test_a_chunk_that_comes_when_it_can_move_nothing_is_not_taken_and_that_is_said():
    client = make_client()
    ask, stamp_ns = asked(client, START)
    late_ns = stamp_ns + 1_001 * MS  # its horizon is 1 s
    assert client.answered(make_answer(ask, stamp_ns), late_ns) is None
    assert client.counts["stale"] == 1
    said, _ = client.waiting_for(late_ns)
    assert said.startswith("a fleet's chunk arrived 1.00 s after its images, but ends 1.00 s after")
    assert asked(client, late_ns)[0].attempt == 2


def test_when_the_scheduler_calls_the_same_round_is_observed_anew():
    client = make_client()
    ask, _ = asked(client, START)
    assert client.called(ask.round, START + 200 * MS)
    again, later_ns = asked(client, START + 200 * MS)
    assert (again.round, again.attempt, client.counts["lost"]) == (ask.round, 2, 0)
    assert client.answered(make_answer(again, later_ns), START + 300 * MS) is not None
    assert not client.called(ask.round, START + 400 * MS)  # that round is over


def test_a_refusal_is_said_and_ends():
    client = make_client()
    ask, _ = asked(client, START)
    client.answered(refusal(ask, "the queue is full", 0.4), START + 100 * MS)
    assert client.waiting_for(START + 100 * MS)[0] == "the fleet's scheduler refuses: the queue is full"
    assert not client.step(START + 499 * MS).observe
    again, _ = asked(client, START + 500 * MS)
    assert again.attempt == 2
    client.answered(refusal(again, "for ever", 1e9), START + 600 * MS)
    assert client.deadline_ns(START + 600 * MS) == START + round((0.6 + LONGEST_RETRY_S) * S)


def test_a_robot_that_is_not_admitted_holds_says_so_and_goes_on_asking_to_be():
    client = FleetClient("engine", "/left", SETTINGS)
    client.begin(START)
    client.instruct("reach", START)
    assert client.step(START) == Step(announce=True)
    assert client.step(START + 1) == Step()
    assert client.step(START + round(ANNOUNCE_S * S)) == Step(announce=True)
    said = client.waiting_for(START + 3 * S)
    assert "".join(said) == (
        "start a fleet's scheduler: none in this ROS domain has admitted this robot for 3 s"
    )
    full = replace(ADMISSION, admitted=False, reason="12 of 12 robots")
    assert client.admitted(full, START + 4 * S)
    assert not client.step(START + 4 * S).observe
    said = client.waiting_for(START + 4 * S)
    assert said[0] == "the fleet's scheduler does not serve this robot: 12 of 12 robots"
    assert client.step(START + 7 * S).announce
    client.admitted(ADMISSION, START + 8 * S)
    assert client.step(START + 8 * S).observe


def test_an_admission_of_another_process_is_for_nobody():
    client = FleetClient("engine", "/left", SETTINGS)
    assert not client.admitted(replace(ADMISSION, engine="before"), START)
    assert client.admission is None


def test_a_scheduler_that_was_started_again_is_asked_again_at_once():
    client = make_client()
    ask, stamp_ns = asked(client, START)
    client.admitted(replace(ADMISSION, scheduler="next"), START + 100 * MS)
    again, later_ns = asked(client, START + 100 * MS)
    assert (again.round, again.attempt) == (ask.round, 2)
    assert client.answered(make_answer(ask, stamp_ns), START + 150 * MS) is None  # of the one before
    answer = make_answer(again, later_ns, scheduler="next")
    assert client.answered(answer, START + 200 * MS) is not None
    ends_ns = later_ns + S
    client.admitted(replace(ADMISSION, scheduler="third"), START + 300 * MS)
    assert not client.step(START + 300 * MS).observe  # nothing was asked, and there is enough to execute
    assert client.step(ends_ns - 500 * MS).observe


def test_no_more_is_asked_for_than_was_admitted():
    client = make_client()
    client.admitted(replace(ADMISSION, chunks_per_s=1.0), START)
    moving(client, START)
    assert not client.step(START + 999 * MS).observe
    assert client.step(START + S).observe


def test_a_chunk_is_extended_within_a_bound_and_its_end_is_the_stall():
    client = make_client(extend_actions=3)
    ask, stamp_ns = asked(client, START)
    taken = client.answered(make_answer(ask, stamp_ns), START)
    assert taken.execution_horizon == 13
    due_ns = stamp_ns + 500 * MS  # as without
    assert not client.step(due_ns - 1).observe
    later, _ = asked(client, stamp_ns + 1_100 * MS)
    assert (later.remaining, later.stalled_s) == (0, 0.0)
    client.step(stamp_ns + 1_500 * MS)
    assert client.execution.stalled_s == pytest.approx(0.2)
    most = make_client(extend_actions=100)
    ask, stamp_ns = asked(most, START)
    assert most.answered(make_answer(ask, stamp_ns), START).execution_horizon == 20


def test_the_age_limit_ends_a_chunk_too():
    client = make_client(max_age_s=0.8)
    ask, stamp_ns = asked(client, START)
    client.answered(make_answer(ask, stamp_ns), START)
    assert client.execution.ends_ns == stamp_ns + 800 * MS


def test_in_mode_block_a_chunk_begins_when_it_comes():
    client = make_client()
    client.execution.told("running", "block", 0.05, 1, START)
    ask, stamp_ns = asked(client, START)
    client.answered(make_answer(ask, stamp_ns), START + 300 * MS)
    assert client.execution.ends_ns == START + 1_350 * MS
    assert client.execution.progress(START + 850 * MS) == (pytest.approx(0.5), 5)


def test_the_arm_stalls_from_the_task_on_and_between_chunks_but_not_while_it_is_held():
    client = make_client()
    client.step(START + 100 * MS)
    moving(client, START + 200 * MS)  # it ends at 1.1 s
    assert client.execution.stalled_s == pytest.approx(0.2)
    client.execution.told("holding", "blend", 0.0, 0, START + 300 * MS)  # the first word: a motion begins
    moving(client, START + 300 * MS)
    client.execution.told("holding", "blend", 0.0, 0, START + 400 * MS)
    client.step(START + 3 * S)
    assert client.execution.stalled_s == pytest.approx(0.2)
    client.execution.told("running", "blend", 0.0, 0, START + 3 * S)
    client.step(START + 4 * S)
    assert client.execution.stalled_s == pytest.approx(1.2)
    client.instruct("another", START + 4 * S)
    assert client.execution.stalled_s == 0.0


def test_a_released_robot_asks_for_nothing():
    client = make_client()
    client.execution.told("released", "blend", 0.0, 1, START)
    assert not client.step(START).observe
    assert client.waiting_for(START)[0].startswith("the trajectory node has released the robot")
    client.execution.told("holding", "blend", 0.0, 1, START + S)
    assert client.step(START + S).observe


def test_a_motion_that_begins_anew_executes_nothing_of_before():
    client = make_client()
    client.execution.told("running", "blend", 0.0, 1, START)
    moving(client, START)
    assert not client.step(START + 100 * MS).observe
    client.execution.told("holding", "blend", 0.0, 2, START + 100 * MS)
    ask, _ = asked(client, START + 100 * MS)
    assert (ask.executed_s, ask.remaining) == (-1.0, 0)


def test_without_an_observation_it_says_what_is_missing():
    client = make_client()
    assert client.step(START).observe
    client.not_observed("no frame of camera front yet")
    assert client.waiting_for(START)[0] == "no frame of camera front yet"
    assert client.step(START + MS).observe
    client.ask(START, START + MS)
    assert client.waiting_for(START + MS)[0].startswith("the fleet's scheduler has the request")
    client.instruct("", START + 2 * MS, "no instruction yet")
    assert client.waiting_for(START + 2 * MS) == ("no instruction yet", "")
    assert client.deadline_ns(START + 2 * MS) is None and not client.step(START + 2 * MS).observe


def test_starting_over_makes_what_was_asked_for_nobody():
    client = make_client()
    ask, stamp_ns = asked(client, START)
    client.begin(START - 100 * S)  # the clock was set back
    assert client.answered(make_answer(ask, stamp_ns), START - 100 * S + MS) is None
    ask, stamp_ns = asked(client, START - 99 * S)
    assert client.answered(make_answer(ask, stamp_ns), START - 99 * S + MS) is not None


def test_an_admitted_robot_says_that_it_is_there_while_it_asks_for_nothing_and_only_then() -> None:
    client, now_ns = make_client(), START
    beats = [0, 0]
    for idle in (False, True, False):
        client.instruct("" if idle else "reach", now_ns)
        for _ in range(1000):  # 10 s
            now_ns += 10 * MS
            step = client.step(now_ns)
            beats[idle] += step.announce
            if step.announce:
                client.admitted(ADMISSION, now_ns)
            if step.observe:
                ask = client.ask(now_ns - 100 * MS, now_ns)
                assert client.answered(make_answer(ask, now_ns - 100 * MS), now_ns) is not None
    assert beats[False] <= 1 and round(10.0 / HEARTBEAT_S) - 1 <= beats[True] <= round(10.0 / HEARTBEAT_S)
