"""Recorded tasks go through the real scheduler node and the simulator, and come back from the bag."""

from __future__ import annotations

import json
import os
from unittest.mock import patch

import fleet_validation


def test_a_few_tasks_through_the_node(tmp_path, capsys):
    file = tmp_path / "found.json"
    asked = ["--small", "--repeats", "1", "--policies", "fifo", "--out", str(file)]
    with patch.dict(os.environ):  # it enters a graph of its own, for good
        assert fleet_validation.main(asked) == 0
    found = json.loads(file.read_text())
    (row,) = found["rows"]
    assert found["tasks"] == 3 and row["node"]["avg"] > 0.0
    assert row["same_order"] > 0.8
    assert row["node"].keys() == row["simulated"].keys() == row["simulated_from_bag"].keys()


def test_pairs_of_chunks_of_two_robots_are_compared():
    one = [("/a", 0), ("/b", 0), ("/a", 1)]
    assert fleet_validation.same_order(one, one) == 1.0
    assert fleet_validation.same_order(one, [("/b", 0), ("/a", 0), ("/a", 1)]) == 0.5
