"""Chunks that take long to follow, one after another: others have their turn, the newest is followed."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import rclpy

from vla_accel_ros.nodes import trajectory
from vla_accel_ros.nodes.trajectory import TrajectoryNode


@pytest.fixture
def node(ros_domain, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rclpy.init()
    node = TrajectoryNode()
    for part in ("_follower", "_outputs", "_standing", "_home", "_motion", "_neighbours", "_contract"):
        setattr(node, part, MagicMock())
    node._follower.step.return_value = None, None
    node.active, node._rests = True, False
    yield node
    node.destroy_node()
    rclpy.shutdown()


@pytest.mark.parametrize(("takes_s", "followed"), [(0.02, [0, 4]), (0.002, [0, 1, 2, 3, 4])])
def test_a_flood_of_long_chunks_leaves_others_their_turn_and_the_newest_is_followed(
    node, monkeypatch, takes_s, followed
):
    clock, got = [0.0], []

    def follow(chunk) -> None:
        node._next = None
        got.append(chunk)
        clock[0] += takes_s

    monkeypatch.setattr(trajectory, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(node, "_follow", follow)
    for chunk in range(5):
        node._on_chunk(chunk)
    node._watch()
    assert got == followed[: 1 if takes_s > 0.01 else 5]
    clock[0] += takes_s
    node._watch()
    node._watch()
    assert got == followed
