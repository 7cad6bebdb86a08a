"""The topic `inputs` and the log of the node: its decisions are sensing/inputs.py's, tested without it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import make_checkpoint
from calling import call, change
from drivers import Drivers
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import GetState

from vla_accel_msgs.msg import Inputs as InputsMessage
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sensing.arrivals import Inputs

S = 1_000_000_000
INSTRUCTION = "reach the green block"
ELBOW = 2


@dataclass
class Reports:
    """What came on the topic, oldest first, and the operator that waits for it."""

    operator: Operator
    messages: list[Inputs]

    def wait(self, condition: Callable[[Inputs], object], description: str) -> Inputs:
        """The newest message for which the condition holds."""
        self.operator.wait(lambda: self.messages and condition(self.messages[-1]), 90.0, description)
        return self.messages[-1]


@pytest.fixture
def reports(operator: Operator) -> Reports:
    messages: list[Inputs] = []

    def on_inputs(message: InputsMessage) -> None:
        messages.append(convert.inputs_from_message(message))
        operator.changed()

    operator.node.create_subscription(InputsMessage, "inputs", on_inputs, qos.REPORT)
    return Reports(operator, messages)


def line(operator: Operator, name: str, pattern: str) -> str:
    """The message of a line of inference's diagnostics, once it has the words."""

    def message() -> str:
        status = operator.diagnostics.get(f"inference: {name}")
        return "" if status is None else status.message

    operator.wait(lambda: re.search(pattern, message()), 90.0, f"{pattern!r} in {name}")
    return message()


def strange_model(folder: Path) -> Path:
    """A checkpoint in whose training the elbow was never where the drivers have it."""
    model = make_checkpoint(folder / "model")
    (file,) = model.glob("assets/*/norm_stats.json")
    data = json.loads(file.read_text())
    state = data["norm_stats"]["state"]
    state["q01"][ELBOW], state["q99"][ELBOW] = 2.5, 3.1
    file.write_text(json.dumps(data))
    return model


def test_inputs_are_published_while_active_and_say_what_chunks_wait_for(
    start, operator, reports, contract, tmp_path
):
    with Drivers(contract):
        model = strange_model(tmp_path)
        node = start("inference", autostart=True, model=str(model), steps=2, language_hz=0.0)
        first = reports.wait(lambda inputs: len(inputs.stamps_ns) == 3, "stamps of all streams")
        later = reports.wait(
            lambda inputs: all(inputs.stamps_ns[name] > ns + S for name, ns in first.stamps_ns.items()),
            "stamps that go on without an instruction",
        )
        assert "no instruction yet" in later.waiting_for
        assert later.chunks_per_s > later.chunks_per_s_needed > 0.0 and later.slow == ""
        node.wait_for_log("no chunks are made: no instruction yet")
        assert "; this contract needs " in node.log
        line(operator, "inference", "no instruction yet")
        assert contract.joint_names[ELBOW] in line(operator, "training", "in training")

        operator.instruct(INSTRUCTION)
        reports.wait(lambda inputs: not inputs.waiting_for, "end of waiting")
        operator.wait(lambda: operator.chunks, 90.0, "chunk")
        assert "not as in training" in node.log

        assert change(operator, "inference", Transition.TRANSITION_DEACTIVATE)
        call(operator, GetState, "inference/get_state", GetState.Request())  # what was sent before has come
        count = len(reports.messages)
        later_ns = operator.now_ns() + S // 2
        operator.wait(lambda: operator.now_ns() > later_ns, 90.0, "half a second")
        assert len(reports.messages) == count
        assert change(operator, "inference", Transition.TRANSITION_ACTIVATE)
        reports.wait(lambda inputs: inputs.stamps_ns and len(reports.messages) > count, "inputs again")
