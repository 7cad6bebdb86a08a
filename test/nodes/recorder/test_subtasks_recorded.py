"""Subtasks are recorded, every change of them; a replay says again only what others said."""

from __future__ import annotations

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.recorder.topics import recorded
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.roles import Role, role


def test_subtask_is_recorded_latched_and_is_a_report_of_which_next_subtask_is_the_input():
    (entry,) = (e for e in recorded(Contract.load(demo_contract())) if e.topic == "subtask")
    assert entry.latched and entry.ours
    assert role("/left/subtask", entry.bag_type) is Role.REPORT
    assert role("/left/next_subtask", entry.bag_type) is Role.INPUT
