"""The section `teleop` of a contract: what a person commands the arm by after ~/take_over.

    teleop: {topic: leader/joint_states, rate_hz: 50, max_age_s: 0.2}      # a leader arm's joint states
    teleop: {topic: jog, type: JointJog, rate_hz: 50, max_age_s: 0.2,
             joints: {elbow: elbow_flex}, deadman: {topic: joy, button: 4}}

joints: our name -> that in the messages, of each joint that they move; without it all, by our names.
"""

from __future__ import annotations

from dataclasses import replace

from vla_accel_ros.contract.fields import Fields, closest
from vla_accel_ros.contract.parts import INPUT_FORM, INPUT_TOPIC, LONGEST_AGE_S, Deadman, Joint, Teleop

TYPES = ("JointState", "JointJog")
_MOST_BUTTONS = 256


def read_teleop(fields: Fields) -> Teleop:
    """Read the section. Without `joints` those of the result are empty: all, see `check_teleop`."""
    teleop = Teleop(
        topic=fields.text("topic", INPUT_TOPIC, INPUT_FORM),
        rate_hz=fields.number("rate_hz", above=0.0),
        max_age_s=fields.number("max_age_s", above=0.0, most=LONGEST_AGE_S),
        joints=fields.named_texts("joints") if fields.has("joints") else {},
        type=fields.choice("type", TYPES, TYPES[0]),
        deadman=_deadman(fields.child("deadman")) if fields.has("deadman") else None,
    )
    if teleop.max_age_s <= 2.0 / teleop.rate_hz:
        problem = f"is not longer than two periods at {teleop.rate_hz:g} Hz"
        fields.refuse("max_age_s", teleop.max_age_s, problem, "raise it")
    fields.close()
    return teleop


def check_teleop(file: Fields, teleop: Teleop, joints: tuple[Joint, ...], twist: bool) -> Teleop:
    """Check the names of joints, and name all of them if none is named."""
    if twist:
        problem, fix = "has no meaning for a hand that twists move", "remove it"
        file.refuse("teleop", teleop.type, problem, fix)
    names = {joint.name for joint in joints}
    for name in teleop.joints:
        if name and names and "" not in names and name not in names:
            fix = closest(name, names, "fix its spelling")
            file.refuse(f"teleop.joints.{name}", teleop.joints[name], "is not of a joint of joints", fix)
    return replace(teleop, joints=teleop.joints or {name: name for name in names})


def _deadman(fields: Fields) -> Deadman:
    topic = fields.text("topic", INPUT_TOPIC, INPUT_FORM)
    button = fields.number("button", least=0.0, most=_MOST_BUTTONS - 1)
    if button % 1.0 > 0.0:
        fields.refuse("button", button, "is not a whole number", "give the index of a button, from 0 on")
    fields.close()
    return Deadman(topic, int(button) if button >= 0.0 else 0)
