"""The trajectory node drives a controller of a kind that another package adds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from chunks import Policy
from running import NodeProcess
from stand_ins import ARM, write_contract
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator

PROGRAM = """\
import sys

sys.path.insert(0, {site!r})
from vla_accel_ros.nodes.trajectory.node import main

raise SystemExit(main())
"""
GRIPPER = {"topic": "gripper/goal", "kind": "my_gripper", "rate_hz": 10.0}


def test_it_gets_the_trajectories(added: Path, operator: Operator, tmp_path: Path) -> None:
    program = tmp_path / "trajectory.py"
    program.write_text(PROGRAM.format(site=str(added)))
    goals: list[list[float]] = []
    operator.node.create_subscription(
        Float64MultiArray, "gripper/goal", lambda message: goals.append(list(message.data)), qos.REPORT
    )
    node = NodeProcess(
        "trajectory",
        tmp_path,
        program=program,
        autostart=True,
        contract=str(write_contract(tmp_path, GRIPPER)),
    )
    try:
        policy, here = Policy(operator), np.array([0.0, 0.0, 0.8, 0.3, 0.0, 0.5])
        policy.goal = here + 0.02
        operator.wait(
            policy.drives(lambda: goals and np.allclose(goals[-1], policy.goal[: len(ARM)], atol=0.01), here),
            90.0,
            "goals at the gripper",
        )
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{node.log}") from None
    finally:
        node.end()
