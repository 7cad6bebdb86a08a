"""`vla say` and `vla ask`: what they deliver arrives, and what they tell is what became of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import CALM, make_checkpoint, make_config
from drivers import Drivers
from stack import CALM_SENSORS, Stack

from vla_accel_msgs.msg import Motion
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.tools.cli import main


@pytest.fixture
def vla(capsys: pytest.CaptureFixture[str], ros_domain: int) -> Callable[..., tuple[int, str, str]]:
    """vla(*arguments): exit status, what it printed, and its errors."""

    def vla(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([*arguments])
        return status, *capsys.readouterr()

    return vla


def test_an_instruction_reaches_inference_beside_other_listeners_and_an_answer_comes_back(
    start, vla, contract, tmp_path
):
    stack = Stack(start, tmp_path, "arm1", inference={"answer_tokens": 4})
    start("recorder", "arm1", autostart=True, record_dir=str(tmp_path / "bags"))
    stack.inference.wait_for_log('ready: say what to do with vla say --namespace /arm1 "..."')
    with Operator(contract, "arm1") as operator:
        operator.wait(lambda: operator.measured and operator.motions, 90.0, "a robot")
    status, out, err = vla("say", "reach the red block", "--namespace", "arm1", "--timeout", "90")
    assert (status, err) == (0, ""), out + err + stack.inference.log
    assert out == (
        "inference has it: 'reach the red block'\nrunning: it follows chunks for this instruction\n"
    )
    status, out, err = vla("ask", "what do you see?", "--namespace", "arm1", "--timeout", "60")
    assert (status, err) == (0, ""), err
    assert "instruction: 'reach the red block'" in stack.inference.log
    status, out, err = vla("ask", "word " * 500, "--namespace", "arm1")
    assert status == 1 and "the question was refused: the prompt of 'word" in err and "tokens;" in err
    status, out, err = vla("say", "word " * 500, "--namespace", "arm1", "--timeout", "30")
    assert status == 1 and "does not move: the instruction is refused: the prompt of 'word" in err
    assert len(err) < 1000
    status, out, err = vla("say", "reach the red block", "--namespace", "arm1", "--timeout", "30")
    assert out.startswith("inference has it") and "refused" not in err


def test_who_does_not_move_says_why(start, vla, tmp_path, operator: Operator):
    status, out, err = vla("say", "reach the red block", "--timeout", "0.5")
    assert status == 1 and not out
    assert err.startswith(
        "vla say: no node called inference subscribes to /instruction: /inference does not run"
    )
    Stack(start, tmp_path)
    status, out, err = vla("say", "reach the red block", "--timeout", "90")
    assert status == 0, err
    operator.hold()
    operator.wait(
        lambda: operator.motions and operator.motions[-1].state == Motion.HOLDING, 60.0, "standstill"
    )
    status, out, err = vla("say", "reach the blue block", "--timeout", "60")
    assert status == 1 and out.startswith("inference has it")
    assert err == "it does not move: held by the operator\n"


def test_it_returns_with_the_causes_long_before_its_longest_wait(start, vla, operator, contract, tmp_path):
    """The longest wait here is longer than a test may take."""
    patience = ("--timeout", "3000")
    status, out, err = vla("say", "reach the red block", *patience)
    assert (status, out) == (1, "") and "/inference does not run" in err
    start("inference", "left", autostart=True, model=str(make_checkpoint(tmp_path / "left")))
    status, _, err = vla("say", "reach the red block", *patience)
    assert status == 1 and "/left/inference" in err
    with Drivers(contract, joints=("elbow_joint", *contract.joint_names[3:])) as drivers:
        start("trajectory", autostart=True, check_controllers=False)
        start("inference", autostart=True, model=str(make_checkpoint(tmp_path / "model")), language_hz=0.0)
        operator.wait(lambda: "inference: inference" in operator.diagnostics, 90.0, "inference")
        status, out, err = vla("say", "reach the red block", *patience)
        assert status == 1 and out.startswith("inference has it")
        assert err.count("no state of joint") == 1 and "elbow_joint" in err
        assert "no instruction" not in err and "beginning anew" not in err
        drivers.silence("front", "wrist")
        status, _, err = vla("say", "reach the blue block", *patience)
        assert status == 1 and err.count("camera/front is") == err.count("camera/wrist is") == 1


def test_it_waits_for_a_node_that_is_starting_beyond_its_longest_wait(start, vla, operator, tmp_path):
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    start("sim_robot", **CALM_SENSORS)
    start("trajectory", autostart=True)
    operator.wait(lambda: operator.measured and operator.motions, 90.0, "robot without inference")
    start("inference", autostart=True, model=str(model), steps=2, language_hz=0.0)
    _, out, err = vla("say", "reach the red block", "--timeout", "2")
    assert out.startswith("inference has it"), out + err


def test_a_node_that_cannot_be_configured_is_told_with_its_reason(start, vla, operator, tmp_path):
    start("inference", autostart=True, model=str(tmp_path / "nowhere")).wait_for_log("cannot configure")
    status, _, err = vla("say", "reach the red block", "--timeout", "3000")
    assert status == 1 and "/inference is unconfigured" in err and "nowhere" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("say", " "), "the say has no words"),
        (("ask", "x", "--timeout", "0"), "--timeout is 0: give seconds"),
    ],
)
def test_wrong_arguments_are_named(vla, arguments, sentence):
    status, _, err = vla(*arguments)
    assert status == 2 and sentence in err
