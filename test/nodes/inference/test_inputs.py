"""The topic `inputs` and the log of the node: its decisions are sensing/inputs.py's, tested without it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import CALM, make_checkpoint, make_config
from calling import call, change
from drivers import Drivers
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import GetState
from running import until

from vla_accel_msgs.msg import Inputs as InputsMessage
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract
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


def test_cameras_are_reported_alive_and_the_pace_is_named_while_a_slow_model_computes(
    start, operator, reports, contract, tmp_path
):
    """An action expert that is wide for what it does takes some half a second of one core."""
    text = demo_contract().read_text()
    assert "max_age_s: 1.2}" in text
    (tmp_path / "robot.yaml").write_text(text.replace("max_age_s: 1.2}", "max_age_s: 0.3}"))
    expert = GemmaConfig(width=512, depth=2, mlp=2048, heads=4, kv_heads=1, head_dim=8)
    model = make_checkpoint(tmp_path / "slow", make_config(horizon=50, expert=expert), reach=CALM)
    pace = "the model makes |this host is busy: "  # other tests, too, may be the cause
    with Drivers(contract):
        node = start(
            "inference",
            autostart=True,
            contract=str(tmp_path / "robot.yaml"),
            model=str(model),
            steps=20,
            language_hz=0.0,
        )
        reports.wait(lambda inputs: inputs.stamps_ns, "inputs")
        until(lambda: re.search(pace, node.log), 90.0, "promise", lambda: node.log)
        operator.instruct(INSTRUCTION)
        operator.wait(lambda: len(operator.chunks) > 5, 180.0, "chunks")
        line(operator, "inference", pace)
    for name in ("camera/front", "camera/wrist"):
        stamps_ns = [inputs.stamps_ns[name] for inputs in reports.messages if name in inputs.stamps_ns]
        for received in operator.chunks[1:]:
            assert any(received.chunk.stamp_ns < ns < received.received_ns for ns in stamps_ns)
