"""`vla fleet up`: replicas in Ray actors serve a robot, also when one is killed, and Ctrl-C ends all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import rclpy
from builders import CALM, make_checkpoint, make_config
from rclpy.node import Node
from running import ROOT, NodeProcess, node_environment, until
from scheduler_robot import AskingRobot, spin_until

from vla_accel_ros.nodes.running.environment import demo_contract

pytest.importorskip("ray")
ACTOR = "ray::Server"


def below(parent: int) -> dict[int, str]:
    """Processes that a process has started, and those that these have: their names."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, above = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            names[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if state != "Z":
            parents[int(folder.name)] = int(above)
    found: dict[int, str] = {}
    ahead = {parent}
    while ahead:
        ahead = {child for child, above in parents.items() if above in ahead}
        found |= {child: names[child] for child in ahead}
    return found


def test_it_serves_also_without_a_replica_that_was_killed_and_leaves_nothing(
    ros_domain: int, tmp_path: Path
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    command = [sys.executable, "-m", "vla_accel_ros.tools.cli", "fleet", "up"]
    command += ["--replicas", "edge:1", "cloud:1", "--model", str(model), "--param", "steps:=2"]
    log = tmp_path / "up.log"
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node("robot", namespace="/left", context=context)
    with open(log, "wb") as out:
        up = subprocess.Popen(command, env=node_environment(tmp_path), stdout=out, stderr=out, cwd=ROOT)
    started: dict[int, str] = {}
    try:
        left = AskingRobot(node, Path(demo_contract()))

        def admitted() -> bool:
            return bool(left.admissions) and left.admissions[-1].admitted

        spin_until((node,), lambda: admitted() or up.poll() is not None, 120.0, "admission")
        assert admitted(), log.read_text()
        spin_until((node,), lambda: len(left.answers) >= 3, 60.0, "three chunks")
        assert {answer.replica for answer in left.answers} <= {"edge0", "cloud0"}
        spin_until((node,), lambda: len(told(left)) == 2, 30.0, "sessions of both")
        for settings in told(left).values():  # of the actors' engines, which a replay makes again
            assert (settings["steps"], settings["robot"]) == (2, "/left")
        started = below(up.pid)
        actors = [pid for pid, name in started.items() if name.startswith(ACTOR)]
        assert len(actors) == 2
        for pid in actors[:1]:
            os.kill(pid, signal.SIGKILL)
        NodeProcess.any_killed = True
        before = len(left.answers)
        spin_until((node,), lambda: len(left.answers) >= before + 3, 60.0, "chunks after one was killed")

        def again() -> bool:
            now = below(up.pid)
            started.update(now)
            return sum(name.startswith(ACTOR) for name in now.values()) == 2

        spin_until((node,), again, 60.0, "replica that was started again")
        before = len(left.answers)
        spin_until((node,), lambda: len(left.answers) >= before + 3, 60.0, "chunks after it came back")
        assert not left.strange and not left.refusals
        assert [answer.round.number for answer in left.answers] == list(range(len(left.answers)))
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0, log.read_text()
    finally:
        up.kill()
        up.wait()
        node.destroy_node()
        rclpy.shutdown(context=context)
    assert "replica edge0: process" in log.read_text()
    until(lambda: not any(_is_running(pid) for pid in started), 30.0, "end of all processes")


def test_it_ends_with_the_reason_if_the_scheduler_cannot_be_configured(
    ros_domain: int, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    command = [sys.executable, "-m", "vla_accel_ros.tools.cli", "fleet", "up"]
    command += ["--model", str(tmp_path / "model")]
    environment = node_environment(tmp_path)
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cannot configure: ") and "is no checkpoint that is known here" in last
    assert not with_environment(f"XDG_STATE_HOME={environment['XDG_STATE_HOME']}")


def with_environment(assignment: str) -> list[str]:
    """Command lines of the processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if assignment.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text())
    return found


def told(robot: AskingRobot) -> dict[str, dict[str, Any]]:
    """Settings of the sessions that it heard, by replica."""
    settings = [json.loads(session.settings) for session in robot.sessions if session.checksum]
    return {each["replica"].rpartition("/")[2]: each for each in settings}


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
