"""`vla say` and `vla ask`: what they deliver arrives, and what they tell is what became of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stack import Stack

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
    start, vla, tmp_path
):
    stack = Stack(start, tmp_path, "arm1", inference={"language_max_tokens": 4})
    start("recorder", "arm1", autostart=True, record_dir=str(tmp_path / "bags"))
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
    assert status == 0, err


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
