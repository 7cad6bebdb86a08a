"""Ten thousand events in any order: requests are lost, repeated and overtaken, robots vanish and come back as
other processes, replicas fail and die. No chunk reaches a wrong robot, and in the end nothing is left."""

from __future__ import annotations

import collections

import pytest
from storm import NAMES, SETTINGS, Storm

from vla_accel_ros.fleet.protocol import ChunkAnswer

EVENTS = 10_000


def said_by(answer: ChunkAnswer) -> tuple[int, ...]:
    assert answer.chunk is not None
    return tuple(int(number) for number in answer.chunk.actions[0])


@pytest.mark.parametrize("seed", range(3))
def test_no_chunk_for_a_wrong_robot_no_request_answered_twice_nothing_left(seed: int) -> None:
    storm = Storm(seed)
    storm.run(EVENTS)
    answers = storm.fleet.told.answers
    chunks = [answer for answer in answers if answer.chunk is not None]
    assert len(chunks) > 500
    for answer in chunks:
        asked = answer.round
        whose = (NAMES.index(asked.robot), int(asked.engine), asked.task, asked.number, answer.attempt)
        assert said_by(answer) == whose
    answered = collections.Counter((answer.round, answer.attempt) for answer in answers)
    assert sum(storm.answered.values()) == len(chunks) and max(storm.answered.values()) == 1
    assert all(count <= storm.delivered[key] for key, count in answered.items())
    assert 5 <= storm.most_records <= 2 * SETTINGS.limits.most_robots
    assert storm.fleet.told.calls

    for one in storm.replicas:
        one.dead = False
    storm.fleet.step(SETTINGS.gone_s + 0.1)
    assert storm.fleet.scheduler.robots() == () and storm.fleet.scheduler.waiting() == 0
    assert [one.known for one in storm.replicas] == [set(), set()]
    assert [one.jobs for one in storm.replicas] == [{}, {}]
    kept = [value for value in vars(storm.fleet.scheduler).values() if isinstance(value, dict | list | set)]
    assert sum(map(len, kept)) <= len(storm.replicas)  # when each replica is tried again
