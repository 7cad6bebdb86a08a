"""Chunks that take long to follow, one after another: others have their turn, the newest is followed."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from vla_accel_ros.nodes.trajectory import node as trajectory
from vla_accel_ros.nodes.trajectory.node import TrajectoryNode


@pytest.mark.parametrize(("takes_s", "at_once", "followed"), [(0.02, 1, [0, 4]), (0.002, 5, [0, 1, 2, 3, 4])])
def test_a_flood_of_long_chunks_leaves_others_their_turn_and_the_newest_is_followed(
    monkeypatch, takes_s, at_once, followed
):
    clock, got = [0.0], []
    node = MagicMock(active=True, _free_s=0.0, _next=None, _rests=False)  # a node in all but its topics
    node._follower.step.return_value = None, None
    node._on_chunk = partial(TrajectoryNode._on_chunk, node)
    node._follow_next = partial(TrajectoryNode._follow_next, node)

    def follow(chunk) -> None:
        node._next = None
        got.append(chunk)
        clock[0] += takes_s

    node._follow = follow
    monkeypatch.setattr(trajectory, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for chunk in range(5):
        node._on_chunk(chunk)
    TrajectoryNode._watch(node)
    assert got == followed[:at_once]
    clock[0] += takes_s
    for _ in range(2):
        TrajectoryNode._watch(node)
    assert got == followed
