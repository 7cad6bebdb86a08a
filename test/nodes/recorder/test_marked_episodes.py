"""A person marks episodes in what the recorder writes, by services and by `vla record`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sensor_msgs.msg import JointState

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.episode_marker import EpisodeMarker
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.jumps import parts
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools import cli
from vla_accel_ros.tools.export.streams import Streams


def marked(folder: Path) -> list[tuple[str, str]]:
    """Outcome and task of the episodes in the only bag of a folder."""
    (bag,) = folder.iterdir()
    (part,) = parts(Bag(bag))
    return [(episode.outcome, episode.task) for episode in Streams(part).episodes]


def test_episodes_are_marked_by_services_and_commands_and_refused_where_they_do_not_fit(
    start, tmp_path, capsys
):
    folder = tmp_path / "bags"
    recorder = start("recorder", "left", autostart=True, record_dir=str(folder))
    with EpisodeMarker("left") as marker:
        assert marker.found(180.0)
        recorder.wait_for_log("recording to")
        with pytest.raises(ValueError, match="start"):
            marker.mark("success")
        marker.set_task("fold")
        assert "fold" in marker.mark("start") and str(folder) in marker.mark("success")
    assert cli.main(["record", "start", "--task", "stack", "--namespace", "left"]) == 0
    assert cli.main(["record", "start", "--namespace", "left"]) == 2
    assert cli.main(["record", "failure", "--namespace", "/left"]) == 0
    assert "episode 2: failure" in capsys.readouterr().out
    assert recorder.end() == 0
    assert marked(folder) == [("success", "fold"), ("failure", "stack")]


def test_record_starts_a_recorder_takes_keys_and_reports_what_it_wrote(tmp_path, operator):
    """Nobody publishes images: the report says so."""
    folder = tmp_path / "bags"
    command = [sys.executable, "-m", "vla_accel_ros.tools.cli", "record", "--record-dir", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        states = operator.node.create_publisher(JointState, "joint_states", 10)
        operator.wait(states.get_subscription_count, 180.0, "recorder")
        contract = Contract.load(demo_contract())
        message = JointState(name=list(contract.joint_names), position=[0.0] * len(contract.joint_names))
        message.header.stamp = operator.node.get_clock().now().to_msg()
        states.publish(message)
        assert states.wait_for_all_acked()
        output, _ = program.communicate("s\ny\nt fold it\nsx\nq", timeout=180.0)
    assert program.returncode == 1, output
    assert "'x' is no key" in output and "episode 1: success" in output
    assert "camera front: of 0 images" in output and "vla export" in output
    assert marked(folder) == [("success", ""), ("unlabeled", "fold it")]


def test_record_without_a_recorder_says_how_to_start_one(capsys, operator):
    assert cli.main(["record", "start"]) == 1
    assert "record:=true" in capsys.readouterr().err
