"""What inference tells of its inputs: every stream's newest stamp, why nothing is made, and its own pace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from builders import make_checkpoint
from calling import call, change
from drivers import Drivers, Fault
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import GetState
from running import until
from slow_model import SLOW_STEPS, make_slow_model
from stack import CALM_SENSORS

from vla_accel_msgs.msg import Inputs as InputsMessage
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model
from vla_accel_ros.sensing.arrivals import Inputs

S = 1_000_000_000
INSTRUCTION = "reach the green block"
BUSY = "this host is busy: "


@dataclass
class Told:
    """What came on the topic, oldest first, and the operator that waits for it."""

    operator: Operator
    messages: list[Inputs]

    def wait(self, condition: Callable[[Inputs], object], what: str, timeout_s: float = 90.0) -> Inputs:
        """The newest message for which the condition holds."""
        self.operator.wait(lambda: self.messages and condition(self.messages[-1]), timeout_s, what)
        return self.messages[-1]


@pytest.fixture
def told(operator: Operator) -> Told:
    messages: list[Inputs] = []

    def on_inputs(message: InputsMessage) -> None:
        messages.append(convert.inputs_from_message(message))
        operator.changed()

    operator.node.create_subscription(InputsMessage, "inputs", on_inputs, qos.REPORT)
    return Told(operator, messages)


def line(operator: Operator, name: str, word: str, other: str = "") -> str:
    """The message of a line of inference's diagnostics, once it has the word, or the other."""
    name = f"inference: {name}"
    there = operator.diagnostics
    operator.wait(
        lambda: (
            name in operator.diagnostics
            and re.search(f"{word}|{other or word}", operator.diagnostics[name].message)
        ),
        90.0,
        f"{word!r} in {name}, which says {there[name].message if name in there else 'nothing'!r}",
    )
    return operator.diagnostics[name].message


def test_without_an_instruction_cameras_are_alive_and_what_is_missing_is_said(
    start, operator, told, contract, tmp_path
):
    with Drivers(contract):
        model = make_checkpoint(tmp_path / "model")
        node = start("inference", autostart=True, model=str(model), steps=2, language_hz=0.0)
        first = told.wait(lambda inputs: len(inputs.stamps_ns) == 3, "stamps of all streams")
        assert set(first.stamps_ns) == {"camera/front", "camera/wrist", "joint_states"}
        later = told.wait(
            lambda inputs: all(
                inputs.stamps_ns[name] > first.stamps_ns[name] + S for name in first.stamps_ns
            ),
            "stamps that go on without an instruction",
        )
        assert later.waiting_for.startswith("no instruction yet")
        assert later.chunks_per_s > later.chunks_per_s_needed > 0.0 and later.slow == ""
        node.wait_for_log("no chunks are made: no instruction yet")
        assert "; this contract needs " in node.log
        line(operator, "inference", "no instruction yet")
        operator.instruct(INSTRUCTION)
        told.wait(lambda inputs: not inputs.waiting_for, "end of waiting")
        operator.wait(lambda: operator.chunks, 90.0, "chunk")


def test_while_a_slow_model_computes_cameras_are_told_to_be_alive_and_its_pace_is_named(
    start, operator, told, contract, tmp_path
):
    text = demo_contract().read_text()
    limit = "max_age_s: 1.2}"
    assert limit in text
    (tmp_path / "robot.yaml").write_text(text.replace(limit, "max_age_s: 0.3}"))
    with Drivers(contract):
        node = start(
            "inference",
            autostart=True,
            contract=str(tmp_path / "robot.yaml"),
            model=str(make_slow_model(tmp_path)),
            steps=SLOW_STEPS,
            language_hz=0.0,
        )
        promised = told.wait(lambda inputs: inputs.stamps_ns, "inputs")
        assert not promised.slow or promised.slow.startswith("the model makes "), promised
        until(lambda: "the model makes " in node.log or BUSY in node.log, 90.0, "promise", lambda: node.log)
        operator.instruct(INSTRUCTION)
        operator.wait(lambda: len(operator.chunks) > 5, 180.0, "chunks")
        slow = line(operator, "inference", "the model makes ", BUSY)
    at = [(c.chunk.stamp_ns, c.received_ns) for c in operator.chunks]
    for name in ("camera/front", "camera/wrist"):
        stamps = sorted({inputs.stamps_ns[name] for inputs in told.messages if name in inputs.stamps_ns})
        for stamp_ns, received_ns in at[1:]:
            during = [s for s in stamps if stamp_ns < s < received_ns]
            assert during
    # A machine that runs other tests, too, may be the cause.
    assert BUSY in slow or (
        "chunks/s" in slow and ("; this contract needs " in slow or "older than chunk.max_age_s" in slow)
    )


def test_on_a_host_that_others_keep_busy_the_host_is_named_and_not_the_model(
    start, operator, told, contract, tmp_path
):
    text = demo_contract().read_text()
    (tmp_path / "robot.yaml").write_text(text.replace("max_age_s: 1.2}", "max_age_s: 0.001}"))
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        with Drivers(contract):
            node = start(
                "inference",
                autostart=True,
                contract=str(tmp_path / "robot.yaml"),
                model=str(make_checkpoint(tmp_path / "model")),
                steps=1,
                language_hz=0.0,
            )
            told.wait(lambda inputs: inputs.stamps_ns, "inputs")
            operator.instruct(INSTRUCTION)
            node.wait_for_log("this host is busy: ")
            busy = line(operator, "inference", "this host is busy")
            assert "the model makes" not in busy and "interrupted" in busy
            told.wait(lambda inputs: not inputs.slow, "report without blame of the model")
    finally:
        for process in burning:
            process.kill()
            process.wait()


def test_a_robot_that_a_slow_model_stops_is_told_the_pace_of_the_model(start, operator, tmp_path):
    text = demo_contract().read_text()
    text = text.replace("max_age_s: 1.2}", "max_age_s: 0.3}").replace("max_age_s: 0.5", "max_age_s: 10.0")
    (tmp_path / "strict.yaml").write_text(text)
    path = str(tmp_path / "strict.yaml")
    start("sim_robot", **CALM_SENSORS)
    start("trajectory", autostart=True, lead_s=0.1, contract=path)
    # Of the bundled policy that is a quarter of a second or more.
    start("inference", autostart=True, contract=path, steps=64, language_hz=0.0, model=str(demo_model()))
    operator.wait(lambda: operator.measured, 90.0, "joint state")
    operator.instruct(operator.reset("reach", 1))

    def reasons() -> list[str]:
        return [reason for motion in operator.motions for reason in motion.reasons]

    operator.wait(lambda: re.search(f"; (the model makes |{BUSY})", " ".join(reasons())), 180.0, "pace")
    assert not any(reason.startswith("camera") and " old" in reason for reason in reasons())


def test_a_camera_that_sends_nothing_usable_is_named_with_the_reason(
    start, operator, told, contract, tmp_path
):
    operator.instruct(INSTRUCTION)
    joints = tuple(contract.joint_names[:-1])
    with Drivers(contract, {"wrist": Fault(encoding="16UC1")}, joints):
        model = make_checkpoint(tmp_path / "model")
        node = start("inference", autostart=True, model=str(model), steps=2, language_hz=0.0)
        inputs = told.wait(lambda inputs: "camera/wrist" in inputs.problems, "problem of the camera")
        assert inputs.problems["camera/wrist"].startswith("camera wrist: ")
        assert "16UC1" in inputs.problems["camera/wrist"]
        assert inputs.problems["joint_states"].startswith(f"no state of joint {contract.joint_names[-1]} yet")
        assert set(told.messages[-1].stamps_ns) == {"camera/front"}
        told.wait(lambda inputs: inputs.waiting_for == "no frame of camera wrist yet", "what is waited for")
        node.wait_for_log("no chunks are made: no frame of camera wrist yet")
        assert "16UC1" in line(operator, "stream wrist", "16UC1")
        line(operator, "stream joint_states", contract.joint_names[-1])
        assert "Fast DDS" not in node.log


def test_an_inactive_node_tells_nothing(start, operator, told, contract, tmp_path):
    with Drivers(contract):
        model = make_checkpoint(tmp_path / "model")
        start("inference", autostart=True, model=str(model), steps=2, language_hz=0.0)
        told.wait(lambda inputs: inputs.stamps_ns, "inputs")
        assert change(operator, "inference", Transition.TRANSITION_DEACTIVATE)
        call(operator, GetState, "inference/get_state", GetState.Request())  # what it told before has come
        count = len(told.messages)
        later_ns = operator.now_ns() + S
        operator.wait(lambda: operator.now_ns() > later_ns, 90.0, "second")
        assert len(told.messages) == count
        assert change(operator, "inference", Transition.TRANSITION_ACTIVATE)
        told.wait(lambda inputs: inputs.stamps_ns and len(told.messages) > count, "inputs after activation")
