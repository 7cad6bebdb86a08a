"""`vla look` at a running robot: it shows what the robot's own topics say, and holds nobody up."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import NodeProcess
from stack import Stack, wait_for_motion

from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.clients.viewer import Viewer
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.look.live import Live
from vla_accel_ros.tools.look.server import Look


def test_look_at_a_running_robot_shows_its_topics_and_holds_nobody_up(
    start: Callable[..., NodeProcess], operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Stack(start, tmp_path)
    operator.wait(lambda: operator.measured, 90.0, "joint state")
    operator.instruct(instruction := operator.reset("reach", 1))
    wait_for_motion(operator)
    with Viewer() as viewer:
        look = Look(Live(viewer, 60.0))
        newest: dict[str, Any] = {}

        def complete() -> bool:
            """Every part has come, at its own rate."""
            newest.update(look.moment(exact=False))
            lines = {name for name, *_ in newest["lines"]}
            pictures = all("network" in camera for camera in newest["cameras"])
            parts = pictures, newest["chunks"], newest["commanded"]["times"], "inference: host" in lines
            return all(parts) and newest["state"] == "running"

        operator.wait(complete, 90.0, "moment with all parts")
        count = len(operator.chunks)  # nothing is taken meanwhile
        operator.wait(lambda: len(operator.chunks) >= count + 20, 90.0, "chunks beside a viewer that sleeps")
        newest = look.moment()
    assert newest["live"] and newest["instruction"] == instruction
    assert [camera["size"] for camera in newest["cameras"]] == [[64, 64]] * 2
    assert [camera["network_size"] for camera in newest["cameras"]] == [[28, 28]] * 2  # of the stack's policy
    names = [name for name, _, _ in newest["robot"]["joints"]]
    times = np.frombuffer(base64.b64decode(newest["measured"]["times"]), "<f4")
    positions = np.frombuffer(base64.b64decode(newest["measured"]["positions"]), "<f4").reshape(
        len(names), -1
    )
    stamps_ns = int(newest["at_ns"]) + np.round(times.astype(np.float64) * 1e9).astype(np.int64)
    heard = {round(joints.stamp_ns / 1e6): joints.positions for joints in operator.joints}
    pairs = [(row, heard[ms]) for row, ms in zip(positions.T, np.round(stamps_ns / 1e6)) if ms in heard]
    assert pairs  # either may miss some
    shown, measured = (np.array(part) for part in zip(*pairs))
    np.testing.assert_allclose(shown, measured, atol=1e-5)
    assert float(dict(line[:1] + line[3:] for line in newest["lines"])["inference: host"]["load"]) >= 0.0
    assert main(["look", "--png", str(tmp_path / "look.png"), "--timeout", "60"]) == 0
    assert (tmp_path / "look.png").stat().st_size > 10_000
    assert main(["look", "--namespace", "other", "--timeout", "10"]) == 1
    assert "/other" in (err := capsys.readouterr().err) and "--namespace with one of /" in err
