"""Whatever becomes of the process that launched the nodes, no node goes on without it: each stops the arm
smoothly first, and ends by itself.

A real process tree: launcher.py starts the nodes of bringup.launch.py as `ros2 launch` does. The robot is not
among them, so that there is somebody to see what its controllers are sent. The test adopts the orphans, so
that it is told how they ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import CALM, make_checkpoint, make_config
from calling import state
from running import ROOT, until
from stack import (
    CALM_SENSORS,
    assert_ends_at_rest,
    commanded_acceleration,
    set_going,
    wait_for_rest,
    wait_until_ns,
)

from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import is_running, this_process

S = 1_000_000_000
LAUNCHER = ROOT / "test" / "launch" / "launcher.py"
BRINGUP = ROOT / "launch" / "bringup.launch.py"
ADOPT = 36  # PR_SET_CHILD_SUBREAPER


@pytest.fixture(autouse=True)
def adopting() -> Iterator[None]:
    ctypes.CDLL(None).prctl(ADOPT, 1)
    yield
    ctypes.CDLL(None).prctl(ADOPT, 0)


@pytest.fixture
def launcher(start, tmp_path: Path, operator: Operator) -> Iterator[subprocess.Popen]:
    """One whose nodes move the arm of a simulated robot. Its attribute `nodes`: process ids by name."""
    start("sim_robot", **CALM_SENSORS)
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    parameters = tmp_path / "params.yaml"
    parameters.write_text("/**:\n  ros__parameters: {lead_s: 0.1, steps: 2}\n")
    ids = tmp_path / "ids.json"
    command = [sys.executable, str(LAUNCHER), str(BRINGUP), str(ids)]
    command += [f"model:={model}", f"params_file:={parameters}", f"state_dir:={tmp_path / 'state'}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{LAUNCHER.parent}", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "launcher.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=ROOT
        )
    try:
        until(ids.exists, 90.0, "nodes that were started", (tmp_path / "launcher.log").read_text)
        process.nodes = json.loads(ids.read_text())  # type: ignore[attr-defined]
        set_going(operator)
        yield process
    finally:
        process.kill()
        process.wait()
        for node in getattr(process, "nodes", {}).values():
            if Path(f"/proc/{node}").exists():
                os.kill(node, signal.SIGKILL)


def terminated(launcher: subprocess.Popen) -> None:
    launcher.send_signal(signal.SIGTERM)


def killed(launcher: subprocess.Popen) -> None:
    launcher.send_signal(signal.SIGKILL)


def interrupted_twice(launcher: subprocess.Popen) -> None:
    """Ctrl-C in a terminal reaches everybody, and the launcher passes it on; by someone who is impatient."""
    os.killpg(launcher.pid, signal.SIGINT)
    os.killpg(launcher.pid, signal.SIGINT)


@pytest.mark.parametrize("end", [terminated, killed, interrupted_twice])
def test_the_nodes_of_a_launcher_that_ends_stop_the_arm_and_end(
    launcher, operator, tmp_path, end: Callable[[subprocess.Popen], None]
):
    begun_ns = operator.now_ns()
    end(launcher)
    launcher.wait(90.0)
    if end is interrupted_twice:
        assert launcher.returncode == 0  # which has waited for them
    else:
        assert [ended(node) for node in launcher.nodes.values()] == [0, 0]  # were they broken off, 143
    wait_for_rest(operator)
    count = len(operator.sent)
    assert_ends_at_rest(operator)
    assert commanded_acceleration(operator, begun_ns).max() <= 1.02
    wait_until_ns(operator, operator.now_ns() + S)
    assert len(operator.sent) == count
    (state,) = (tmp_path / "state" / "vla_accel_ros").glob("*trajectory.json")
    assert json.loads(state.read_text())["clean"]
    assert "killed:" not in (tmp_path / "launcher.log").read_text()


def test_a_node_that_is_started_by_hand_outlives_who_started_it_and_its_terminal(tmp_path, operator):
    """`nohup ros2 run ... &` in a shell that is closed."""
    log = tmp_path / "node.log"
    command = f"nohup {sys.executable} -m vla_accel_ros.nodes.trajectory > {log} 2>&1 & echo $!"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = subprocess.run(["sh", "-c", command], env=environment, cwd=ROOT, capture_output=True, check=True)
    node = int(shell.stdout)
    try:
        state(operator, "trajectory")
        os.kill(node, signal.SIGHUP)
        state(operator, "trajectory")
        os.kill(node, signal.SIGTERM)
        assert ended(node) == 0
    finally:
        if Path(f"/proc/{node}").exists():
            os.kill(node, signal.SIGKILL)


def ended(node: int) -> int:
    """How an orphan ended; raises TimeoutError when it does not."""
    processes: list[tuple[int, int]] = []

    def over() -> bool:
        processes.append(os.waitpid(node, os.WNOHANG))
        return processes[-1] != (0, 0)

    until(over, 45.0, "end of an orphan")
    return os.waitstatus_to_exitcode(processes[-1][1])


def test_a_process_is_known_from_a_later_one_of_its_number():
    child = subprocess.Popen(["sleep", "60"])
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    assert is_running(f"{child.pid}:{fields[19]}") and is_running(this_process())
    assert not is_running(f"{child.pid}:1")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(f"{child.pid}:{fields[19]}")  # though nobody has collected its status
    child.wait()
    assert not is_running(f"{child.pid}:{fields[19]}")
