"""The controllers of a contract: those that a robot has active for the policy's joints.

A controller that is not active, or whose kind is not known, is only named in a comment.
"""

from __future__ import annotations

from collections.abc import Sequence

from vla_accel_ros.contract.files.fields import UNKNOWN
from vla_accel_ros.extensions import controller_kind
from vla_accel_ros.sensing.survey import ControllerOffer, Survey
from vla_accel_ros.tools.contract.text import line, listed

RATES_HZ = {"forward_command": "100", "servo_joint": "50", "servo_twist": "50"}
RATES_HZ |= {"gripper_command": "20", "parallel_gripper": "20"}
_GUIDE = "docs/guide/controllers.md"


def controller_lines(survey: Survey | None, names: Sequence[str], hand: int) -> list[str]:
    """The section of a contract. names: the joints in the policy's order. hand: how many of them a
    servo_twist moves, 0 if actions are joints."""
    if survey is None:
        return _usual(names, hand)
    used: list[ControllerOffer] = []
    lines: list[str] = []
    missing = list(names)
    if hand:
        servos = [offer for offer in survey.controllers if offer.kind == "servo_twist"]
        lines += _twist(survey, servos[0] if len(servos) == 1 else None, names[:hand])
        used, missing = servos[:1], missing[hand:]
    for offer in _candidates(survey):
        moved = [name for name in offer.joints if name in missing]
        rivals = [o for o in _candidates(survey) if o is not offer and set(o.joints) & set(moved)]
        if moved and not rivals:
            lines += _controller(survey, offer)
            used.append(offer)
            missing = [name for name in missing if name not in moved]
    if missing:
        candidates = [o.topic for o in _candidates(survey) if set(o.joints) & set(missing) or not o.joints]
        choice = (
            f"one of {', '.join(candidates)}" if candidates else f"no controller takes these joints: {_GUIDE}"
        )
        lines += [line(1, "- topic", UNKNOWN, choice), line(2, "joints", listed(missing), "the joints above")]
    lines += [f"  # Not used: {o.origin or o.topic} ({o.name})" for o in survey.controllers if o not in used]
    return lines


def _candidates(survey: Survey) -> list[ControllerOffer]:
    """What takes joint positions, and is not known to be inactive."""
    streamed = ("joint_trajectory", "forward_command", "servo_joint", "gripper_command", "parallel_gripper")
    return [offer for offer in survey.controllers if offer.kind in streamed and offer.state in ("active", "")]


def _controller(survey: Survey, offer: ControllerOffer) -> list[str]:
    lines = [line(1, "- topic", survey.relative(offer.topic).lstrip("/"), offer.origin)]
    if offer.kind != "joint_trajectory":
        kind = controller_kind(offer.kind)
        lines.append(line(2, "kind", offer.kind, f"it takes {kind.goals or kind.message}"))
        lines.append(line(2, "rate_hz", RATES_HZ[offer.kind], "a default: how often it is sent commands"))
    if offer.action:
        lines.append(line(2, "action", survey.relative(offer.action).lstrip("/"), survey.origin))
    return [*lines, line(2, "joints", listed(offer.joints), "its own order")]


def _twist(survey: Survey, servo: ControllerOffer | None, joints: Sequence[str]) -> list[str]:
    topic = UNKNOWN if servo is None else survey.relative(servo.topic).lstrip("/")
    return [
        line(
            1,
            "- topic",
            topic,
            servo.origin if servo is not None else "that of MoveIt Servo's delta_twist_cmds",
        ),
        line(2, "kind", "servo_twist", "the checkpoint's actions move a hand"),
        line(2, "rate_hz", RATES_HZ["servo_twist"], "a default: how often it is sent commands"),
        line(2, "frame", UNKNOWN, "the frame in which the training data counted, such as base_link"),
        line(2, "joints", listed(joints), "the joints above"),
    ]


def _usual(names: Sequence[str], hand: int) -> list[str]:
    """Without a robot: the names that controllers usually have."""
    default = "a default: or your controller's"
    if not hand:
        return [
            line(1, "- topic", "arm_controller/joint_trajectory", default),
            line(2, "joints", listed(names), "the joints above"),
        ]
    lines = _twist(Survey(""), None, names[:hand])
    lines[0] = line(1, "- topic", "servo_node/delta_twist_cmds", default)
    return [
        *lines,
        line(1, "- topic", "gripper_controller/joint_trajectory", default),
        line(2, "joints", listed(names[hand:]), "the joints above"),
    ]
