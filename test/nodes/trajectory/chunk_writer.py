"""A process that writes chunks into shared memory, and what a controller got of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from running import node_environment
from stand_ins import Arm

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.chunk_topic import slot_name
from vla_accel_ros.nodes.clients.operator import Operator

RATE_HZ, CHUNKS_HZ = 100.0, 480
INFERENCE = "/inference"
NEAR = np.array([0.5, 0.3, 1.2, 0.1, -0.4, 0.7])
FAR = np.array([-0.6, -0.3, 0.6, 0.5, 0.6, 0.2])
S = 1_000_000_000


class Writer:
    """A process that writes chunks; started by `start`, again after it was killed."""

    def __init__(self, operator: Operator, folder: Path, writer: str = INFERENCE) -> None:
        self.name = slot_name(operator.node)
        joints = ",".join(operator.contract.action_names)
        program = str(Path(__file__).parents[1] / "slot_program.py")
        self._command = [sys.executable, program, self.name, joints, str(CHUNKS_HZ), writer]
        self._environment = node_environment(folder)
        self.process: subprocess.Popen[str] | None = None

    def start(self, goal: np.ndarray) -> None:
        """Write chunks that lead there."""
        self.process = subprocess.Popen(
            *(self._command,), env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lead(goal)
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def lead(self, goal: np.ndarray) -> None:
        """Lead elsewhere from now on."""
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, goal.tolist())) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """kill -9; the slot stays."""
        if self.process is not None:
            with self.process:
                self.process.kill()
        self.process = None


def sent(arm: Arm, joints: list[str]) -> np.ndarray:
    return np.array([[command[name] for name in joints] for _, command in list(arm.commands)])


def reach(operator: Operator, arm: Arm, joints: list[str], goal: np.ndarray) -> None:
    """Wait until the arm is there."""
    operator.wait(lambda: np.abs(arm.array(joints) - goal).max() < 0.02, 120.0, "arm at the goal")


def assert_no_leap(arm: Arm, joints: list[str], begin: np.ndarray, contract: Contract) -> None:
    """Every command is one that two periods of full speed can reach."""
    top = np.array([joint.velocity for joint in contract.joints])
    steps = np.abs(np.diff(np.concatenate([begin[None], sent(arm, joints)]), axis=0))
    assert (steps <= top * 2 / RATE_HZ * 1.001).all()


def wait_until_still(operator: Operator, arm: Arm, joints: list[str], count: int = 30) -> None:
    """Until that many commands are one and the same."""
    operator.wait(
        lambda: len(arm.commands) > count and not np.ptp(sent(arm, joints)[-count:], axis=0).any(),
        90.0,
        "commands that hold",
    )
