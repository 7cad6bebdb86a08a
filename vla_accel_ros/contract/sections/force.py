"""The section `force` of a contract: force sensors, their limits, and how the arm gives way.

    force:
      wrench: {slot: wrist_ft, rate_hz: 1000, max_age_s: 0.02,
               force_n: {yields: 15, stops: 40, most: 200, bias: 5},
               torque_nm: {yields: 2, stops: 5, most: 10, bias: 0.5}}
      effort: {topic: joint_states, type: JointState, rate_hz: 125, max_age_s: 0.1,
               joints: {elbow_flex: {yields: 4, stops: 8}}}
      retreat: {rad: 0.2, s: 1.0, speed: 1.0, rest_s: 0.3, most: 3}   # and m: 0.05 for a hand moved by twists

One of wrench and effort is enough. control/force/sensor.py and executed.py say what each field means and its
default; docs/safety.md has the table.
"""

from __future__ import annotations

import math
from dataclasses import replace

from vla_accel_ros.contract.files.fields import Fields, closest
from vla_accel_ros.contract.parts import INPUT_FORM, INPUT_TOPIC, LONGEST_AGE_S, Joint
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Force
from vla_accel_ros.control.force.sensor import ForceSensor, Quantity

WRENCH_TYPE, EFFORT_TYPES = "WrenchStamped", ("JointState", "Float64MultiArray")
_AXES = ("x", "y", "z")
_SLOT = r"[A-Za-z0-9_.\-]+"
_FROZEN_S = 0.5
_MOST_HZ = 8000.0


def read_force(fields: Fields) -> Force:
    """Read the section."""
    readers = {"wrench": _wrench, "effort": _effort}
    sensors = [read(fields.child(key)) for key, read in readers.items() if fields.has(key)]
    if not sensors:
        fields.missing("wrench", "add it, or effort, or remove force")
    retreat = _retreat(fields.child("retreat")) if fields.has("retreat") else Retreat()
    stay = fields.texts("stay", r"\S(.*\S)?", "a joint's name") if fields.has("stay") else ()
    fields.close()
    return Force(tuple(sensors), retreat, stay)


def check_force(file: Fields, force: Force, joints: tuple[Joint, ...], twist: bool) -> Force:
    """Check the names of joints. Joints that are held back on purpose (following_error: off) are added to
    `stay`."""
    if force.retreat.m is not None and not twist:
        problem = "is for a hand that is moved by twists"
        file.refuse("force.retreat.m", force.retreat.m, problem, "remove it, and give rad")
    names = {joint.name for joint in joints}
    named = [(f"force.stay[{i}]", name) for i, name in enumerate(force.stay)]
    for sensor in force.sensors:
        if sensor.name == "effort":
            named += [(f"force.effort.joints.{q.axes[0]}", q.axes[0]) for q in sensor.quantities]
    for path, name in named:
        if name and names and "" not in names and name not in names:
            fix = closest(name, names, "fix its spelling")
            file.refuse(path, name, "is not a joint of joints", fix)
    held_back = tuple(joint.name for joint in joints if math.isinf(joint.following.rad))
    return replace(force, stay=tuple(dict.fromkeys((*force.stay, *held_back))))


def _wrench(fields: Fields) -> ForceSensor:
    quantities = tuple(
        _quantity(fields.child(key), name, unit, _AXES)
        for key, name, unit in (("force_n", "force", "N"), ("torque_nm", "torque", "Nm"))
    )
    return _sensor(fields, "wrench", quantities, (WRENCH_TYPE,), _FROZEN_S)


def _effort(fields: Fields) -> ForceSensor:
    unit = fields.text("unit", r"[A-Za-z]+", "a unit such as Nm or A", default="Nm")
    joints = fields.named("joints", r"\S(.*\S)?", "a joint's name")
    quantities = tuple(_quantity(limits, f"effort of {name}", unit, (name,)) for name, limits in joints)
    return _sensor(fields, "effort", quantities, EFFORT_TYPES, math.inf)


def _quantity(fields: Fields, name: str, unit: str, axes: tuple[str, ...]) -> Quantity:
    yields, stops = fields.number("yields", above=0.0), fields.number("stops", above=0.0)
    if stops <= yields:
        fields.refuse("stops", stops, f"is not above yields = {yields:g}", "raise it, or lower yields")
    ceiling = fields.number("most", above=0.0, default=math.inf)
    if ceiling <= stops:
        fields.refuse("most", ceiling, f"is not above stops = {stops:g}", "lower stops: it is never measured")
    bias = fields.number("bias", above=0.0, default=0.0)
    if bias >= yields:
        fields.refuse("bias", bias, f"is not below yields = {yields:g}", "lower it: contacts would be tared")
    fields.close()
    return Quantity(name, unit, axes, yields, stops, ceiling, bias)


def _sensor(
    fields: Fields, name: str, quantities: tuple[Quantity, ...], types: tuple[str, ...], frozen_s: float
) -> ForceSensor:
    slot = fields.text("slot", _SLOT, "letters, digits, _, - and .", default="")
    topic = fields.text("topic", INPUT_TOPIC, INPUT_FORM, default="")
    if slot and topic:
        fields.refuse("topic", topic, "is given together with slot", "remove one of them")
    elif not slot and not topic and fields.valid("slot") and fields.valid("topic"):
        fields.missing("slot", "add it, or topic")
    kind = ""
    if topic:
        kind = fields.choice("type", types, types[0])
    elif fields.has("type"):
        fields.refuse("type", fields.take("type"), "belongs to a topic", "remove it, or give topic")
    rate_hz = fields.number("rate_hz", above=0.0, most=_MOST_HZ)
    max_age_s = fields.number("max_age_s", above=0.0, most=LONGEST_AGE_S)
    if max_age_s <= 2.0 / rate_hz:
        fields.refuse("max_age_s", max_age_s, f"is not longer than two periods at {rate_hz:g} Hz", "raise it")
    lowpass_hz = fields.number("lowpass_hz", above=0.0, default=100.0)
    release = fields.number("release", above=0.0, default=0.5)
    if release >= 1.0:
        fields.refuse("release", release, "is not below 1", "give the share of yields that is no contact")
    if fields.take_off("frozen_s"):
        frozen_s = math.inf
    else:
        frozen_s = fields.number("frozen_s", above=0.0, default=frozen_s)
    fields.close()
    return ForceSensor(name, quantities, rate_hz, max_age_s, slot, topic, kind, lowpass_hz, release, frozen_s)


def _retreat(fields: Fields) -> Retreat:
    usual = Retreat()
    rad, s, speed, rest_s, count = (
        fields.number(name, above=0.0, default=getattr(usual, name))
        for name in ("rad", "s", "speed", "rest_s", "most")
    )
    if speed > 1.0:
        fields.refuse("speed", speed, "is faster than the arm came", "give at most 1")
    if count % 1.0:
        fields.refuse("most", count, "is not a whole number", "give a whole number")
    m = fields.optional("m", above=0.0)
    fields.close()
    return Retreat(rad, s, speed, rest_s, int(count) if math.isfinite(count) else usual.most, m)
