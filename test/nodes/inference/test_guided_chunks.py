"""Mode rtc in the whole stack: chunks continue each other, and what was not executed is continued by none.

Separate processes, real topics, real physics. The policy has random weights: its free chunks have little to
do with each other, so that agreement is the guidance's doing.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from calling import change, set_parameter
from lifecycle_msgs.msg import Transition
from stack import Stack, set_going

from vla_accel_msgs.msg import ActionChunk, Motion
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.tools.replay.moments import agreement_from_message

CHUNKS = 20


def switch(operator: Operator, mode: str) -> None:
    """Have the trajectory node hand chunks over in another mode; inference is told by nobody else."""
    assert change(operator, "trajectory", Transition.TRANSITION_DEACTIVATE)
    assert change(operator, "trajectory", Transition.TRANSITION_CLEANUP)
    assert set_parameter(operator, "trajectory", "mode", mode).successful
    assert change(operator, "trajectory", Transition.TRANSITION_CONFIGURE)
    assert change(operator, "trajectory", Transition.TRANSITION_ACTIVATE)


def chunking(operator: Operator) -> dict[str, str]:
    """What inference says of its chunks, by name."""
    line = operator.diagnostics.get("inference: chunking")
    return {} if line is None else {"message": line.message, **{v.key: v.value for v in line.values}}


def counted(operator: Operator, what: str) -> int:
    return int(chunking(operator).get(what, 0))


def seam(operator: Operator) -> float:
    """How far a chunk is from the one before where it takes over; median of CHUNKS new ones, in rad."""
    count, delay = len(operator.chunks), int(chunking(operator)["delay [steps]"])
    operator.wait(lambda: len(operator.chunks) > count + CHUNKS, 180.0, f"{CHUNKS} chunks")
    distances = []
    for old, new in pairwise(received.chunk for received in operator.chunks[count:]):
        remaining = old.rest(new.stamp_ns)[delay : delay + 2]
        taken_over = new.actions[delay : delay + 2][: len(remaining)]
        distances.append(np.abs(taken_over - remaining).max(initial=0.0))
    return float(np.median(distances))


def test_chunks_continue_each_other_in_mode_rtc_and_only_there(start, tmp_path, operator):
    stack = Stack(start, tmp_path, mode="async", inference={"rtc_mask": "hard", "rtc_mask_horizon": 9})
    set_going(operator)
    operator.wait(lambda: chunking(operator).get("delay [steps]", "n").isdigit(), 90.0, "measured delay")
    free = seam(operator)
    assert chunking(operator)["message"] == "not guided: mode async"
    assert counted(operator, "guided") == 0

    switch(operator, "rtc")
    assert {m.state for m in operator.motions} >= {Motion.RUNNING, Motion.RELEASED, Motion.HOLDING}
    operator.wait(lambda: counted(operator, "guided") > 2, 90.0, "guided chunks")
    assert operator.motions[-1].mode == "rtc"
    assert chunking(operator)["message"] == "guided"
    heard: list[ActionChunk] = []
    operator.node.create_subscription(ActionChunk, "action_chunk", heard.append, qos.REPORT)
    guided = seam(operator)
    assert guided < 0.5 * free
    agreements = [(message.request_id, agreement_from_message(message)) for message in list(heard)]
    agreements = [(number, agreement) for number, agreement in agreements if agreement is not None]
    assert len(agreements) > CHUNKS / 2
    for number, agreement in agreements:
        assert agreement.previous < number and len(agreement.actions) > agreement.delay > 0
        assert (agreement.schedule, agreement.end - agreement.delay) == ("ONES", 9)

    operator.hold()
    operator.wait(lambda: operator.motions[-1].state == Motion.HOLDING, 90.0, "hold")
    assert operator.motions[-1].reasons[0] == "held by the operator"
    operator.wait(lambda: counted(operator, "not guided: holding") > 2, 90.0, "free chunks in the hold")
    count = counted(operator, "not guided: first")
    operator.resume()
    operator.wait(lambda: counted(operator, "not guided: first") > count, 90.0, "first chunk after the hold")
    sent = len(operator.sent)
    operator.wait(lambda: len(operator.sent) > sent + 10, 90.0, "trajectories")
    assert chunking(operator)["message"] == "guided"
    assert "rtc is" not in stack.inference.log
