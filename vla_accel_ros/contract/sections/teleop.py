"""The section `teleop` of a contract: what a person commands the arm by after ~/take_over.

    teleop: {topic: leader/joint_states, rate_hz: 50, max_age_s: 0.2}      # a leader arm's joint states
    teleop: {topic: jog, type: JointJog, rate_hz: 50, max_age_s: 0.2,
             joints: {elbow: elbow_flex}, deadman: {topic: joy, button: 4}}
    teleop: {topic: twist, type: TwistStamped, rate_hz: 50, max_age_s: 0.2,
             hand: {base: base_link, tip: tool0, axes: base, linear: 0.25, angular: 1.0}}

joints: our name -> that in the messages, of each joint that they move; without it all, by our names. hand:
the links between which the joints move it, and the axes of a twist; it needs the contract's urdf. If the
policy's actions are twists, a person commands twists of the same frame and speeds, without hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from vla_accel_ros.contract.files.fields import Fields, closest
from vla_accel_ros.contract.parts import (
    INPUT_FORM,
    INPUT_TOPIC,
    LONGEST_AGE_S,
    Deadman,
    Joint,
    Teleop,
    TeleopHand,
)
from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.hand import BASE, TOOL
from vla_accel_ros.control.limits.joint_limits import JointLimits

TWIST = "TwistStamped"
TYPES = ("JointState", "JointJog", TWIST)
_MOST_BUTTONS = 256


def read_teleop(fields: Fields, joints: Sequence[Joint], description: str, twists: bool) -> Teleop:
    """Read the section. description: the text of the URDF, empty without one. twists: the policy's are."""
    types = (TWIST,) if twists else TYPES
    kind = fields.choice("type", types, types[0])
    named = fields.named_texts("joints") if kind != TWIST and fields.has("joints") else {}
    names = {joint.name for joint in joints}
    for name, word in named.items():
        if name and names and "" not in names and name not in names:
            fix = closest(name, names, "fix its spelling")
            fields.refuse(f"joints.{name}", word, "is not of a joint of joints", fix)
    teleop = Teleop(
        topic=fields.text("topic", INPUT_TOPIC, INPUT_FORM),
        rate_hz=fields.number("rate_hz", above=0.0),
        max_age_s=fields.number("max_age_s", above=0.0, most=LONGEST_AGE_S),
        joints=named or {joint.name: joint.name for joint in joints},
        type=kind,
        hand=_hand(fields, joints, description) if kind == TWIST and not twists else None,
        deadman=_deadman(fields.child("deadman")) if fields.has("deadman") else None,
    )
    if teleop.max_age_s <= 2.0 / teleop.rate_hz:
        problem = f"is not longer than two periods at {teleop.rate_hz:g} Hz"
        fields.refuse("max_age_s", teleop.max_age_s, problem, "raise it")
    fields.close()
    return teleop


def _hand(fields: Fields, joints: Sequence[Joint], description: str) -> TeleopHand | None:
    hand = fields.child("hand")
    base, tip = hand.text("base"), hand.text("tip")
    axes = hand.choice("axes", (BASE, TOOL))
    linear, angular = hand.number("linear", above=0.0), hand.number("angular", above=0.0)
    hand.close()
    if not description:
        fields.refuse("type", TWIST, "needs the robot's description", "add urdf to the contract")
    if not (description and fields.valid("hand")):
        return None
    try:
        arm = Arm(description, [joint.name for joint in joints], JointLimits.of(joints), base, tip)
    except ValueError as problem:
        fields.refuse("hand.tip", tip, "cannot be moved", str(problem))
        return None
    return TeleopHand(arm, axes, linear, angular)


def _deadman(fields: Fields) -> Deadman:
    topic = fields.text("topic", INPUT_TOPIC, INPUT_FORM)
    button = fields.number("button", least=0.0, most=_MOST_BUTTONS - 1)
    if button % 1.0 > 0.0:
        fields.refuse("button", button, "is not a whole number", "give the index of a button, from 0 on")
    fields.close()
    return Deadman(topic, int(button) if button >= 0.0 else 0)
