"""What inference was told to do survives its crash, or is said to be lost. Whoever said it has gone."""

from __future__ import annotations

import pytest
from builders import make_checkpoint
from calling import change
from instructions import acts, say
from lifecycle_msgs.msg import Transition
from running import NodeProcess
from stack import CALM_SENSORS

from vla_accel_ros.nodes.clients.operator import Operator

TOLD = "reach the red block"

LOST = f"no instruction since the restart: say it again, the last was {TOLD!r}"


@pytest.fixture
def node(start, tmp_path, operator) -> NodeProcess:
    """It acts on what it was told."""
    start("sim_robot", **CALM_SENSORS)
    model = make_checkpoint(tmp_path / "model")
    node = start("inference", autostart=True, model=str(model), steps=1, language_hz=0.0)
    say(operator, TOLD, node)
    acts(operator)
    return node


def waits(operator: Operator, reason: str) -> None:
    """It has frames, makes no chunk, and says why."""
    operator.wait(
        lambda: operator.diagnostics.get("inference: inference") and said(operator) == reason, 180.0, reason
    )


def said(operator: Operator) -> str:
    return operator.diagnostics["inference: inference"].message


def test_after_a_crash_it_goes_on_with_what_it_was_told(node, operator):
    for _ in range(2):
        node.kill()
        node.start()
        acts(operator)
    assert f"instruction: {TOLD!r}, kept over a crash" in node.log


def test_where_it_is_to_forget_it_says_what_is_lost(node, operator):
    node.parameters["after_restart"] = "forget"
    node.kill()
    node.start()
    waits(operator, LOST)
    say(operator, "put the red block on the white pad", node)
    acts(operator)


def test_after_a_clean_end_it_does_not_begin_by_itself(node, operator):
    assert node.end() == 0
    node.start()
    waits(operator, LOST)


def test_it_is_not_lost_by_a_walk_through_the_lifecycle(node, operator):
    for transition in ("DEACTIVATE", "CLEANUP", "CONFIGURE", "ACTIVATE"):
        assert change(operator, "inference", getattr(Transition, f"TRANSITION_{transition}"))
    acts(operator)
