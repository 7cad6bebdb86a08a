"""The last instruction survives a crash of the node, not its clean end. Its sender has gone."""

from __future__ import annotations

import rclpy
from builders import make_checkpoint
from calling import change
from lifecycle_msgs.msg import Transition
from running import LOST, NodeProcess, until
from stack import CALM_SENSORS
from std_msgs.msg import String

from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator

TASK = "reach the red block"


def say(operator: Operator, text: str, node: NodeProcess) -> None:
    """As `ros2 topic pub --once` does. It is kept when this returns: a thread of its own writes it."""
    terminal = rclpy.create_node("terminal", context=operator.node.context)
    publisher = terminal.create_publisher(String, "instruction", qos.LATCHED)
    publisher.publish(String(data=text))
    node.wait_for_log(f"instruction: {text!r}")
    until(lambda: text in node.kept, 90.0, f"{text!r} in its state file", lambda: node.log)
    terminal.destroy_node()


def acts(operator: Operator) -> None:
    now_ns = operator.now_ns()
    operator.wait(lambda: operator.chunks and operator.chunks[-1].chunk.stamp_ns > now_ns, 180.0, "chunk")


def test_instruction_survives_transitions_crashes_and_lost_ports_but_no_clean_end(start, operator, tmp_path):
    start("sim_robot", **CALM_SENSORS)
    model = make_checkpoint(tmp_path / "model")
    node = start("inference", autostart=True, model=str(model), steps=1, language_hz=0.0)
    say(operator, TASK, node)
    acts(operator)
    for transition in ("DEACTIVATE", "CLEANUP", "CONFIGURE", "ACTIVATE"):
        assert change(operator, "inference", getattr(Transition, f"TRANSITION_{transition}"))
    acts(operator)

    node.kill()
    node.start()
    acts(operator)
    assert f"{TASK!r}, kept over a crash" in node.log

    node.forget_log()
    node.lose_ports()
    assert LOST in node.log
    acts(operator)
    assert f"{TASK!r}, kept over a crash" in node.log

    assert node.end() == 0
    node.forget_log()
    node.start()
    node.wait_for_log("no chunks are made: no instruction since the restart")
    operator.wait(lambda: repr(TASK) in operator.diagnostics["inference: inference"].message, 90.0, TASK)
    say(operator, "put the red block on the white pad", node)
    acts(operator)
