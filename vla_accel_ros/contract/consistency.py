"""What no single field of a contract can show: whether its parts fit each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vla_accel_ros.contract.files.fields import Fields, closest
from vla_accel_ros.control.contract import LEADS

Contract = Any
"""contract.Contract, whose module imports this one."""


def check_names(file: Fields, contract: Contract) -> None:
    """Check what no single field can show: no name occurs twice, and every joint has exactly one controller.

    A name that could not be read is empty here, and is compared with nothing.
    """
    cameras, controllers, joints = contract.cameras, contract.controllers, contract.joints
    images = [(f"cameras.{c.name}.image", c.image) for c in cameras]
    earlier = [(f"cameras.{c.name}.history.{image}", image) for c in cameras for image, _ in c.history]
    _unique(file, images + earlier, "give every camera its own image")
    _unique(file, [(f"cameras.{c.name}", c.name) for c in cameras] + earlier, "rename the camera")
    topics = [(f"cameras.{c.name}.topic", c.topic) for c in cameras]
    topics += [(f"cameras.{c.name}.info", c.info) for c in cameras if c.info]
    topics += [("joint_states.topic", contract.joint_states.topic)]
    if contract.teleop is not None:
        topics += [("teleop.topic", contract.teleop.topic)]
    topics += [(f"controllers[{i}].topic", c.topic) for i, c in enumerate(controllers)]
    topics += [(f"controllers[{i}].action", c.action) for i, c in enumerate(controllers) if c.action]
    if contract.base is not None:
        topics += [("base.topic", contract.base.controller.topic), ("base.odometry", contract.base.odometry)]
    _unique(file, topics, "give every stream its own topic")
    names = [(f"joints[{i}].name", joint.name) for i, joint in enumerate(joints)]
    once = _unique(file, names, "name every joint once")
    once &= all(file.valid(path) for path, _ in names)
    moved = [
        (f"controllers[{i}].joints[{k}]", n)
        for i, c in enumerate(controllers)
        for k, n in enumerate(c.joints)
    ]
    once &= _unique(file, moved, "give every joint one controller")
    declared, controlled = {joint.name for joint in joints}, {name for _, name in moved}
    read = all([joints, controllers, *(c.joints for c in controllers)]) and "" not in declared | controlled
    if not (read and once):  # a missing controller would only repeat the mistake above
        return
    for path, name in moved:
        if name not in declared:
            fix = closest(name, declared - controlled, "add it there or fix its spelling")
            file.refuse(path, name, "is not a joint of joints", fix)
    for path, name in names:
        if name not in controlled and controlled <= declared:
            file.refuse(path, name, "has no controller", "name it in controllers[].joints")


def check_twist(file: Fields, contract: Contract) -> None:
    """Exactly one controller leads the hand if the policy's actions are twists, by twists; at most one if
    they are of hands, of which there is then one; and none otherwise."""
    if not (file.valid("actions") and file.valid("controllers")):
        return
    turning = [i for i, c in enumerate(contract.controllers) if c.kind in LEADS]
    kind = contract.controllers[turning[0]].kind if turning else ""
    if contract.actions == "twist" and kind != LEADS[0]:
        fix = "give one of controllers kind: servo_twist"
        file.refuse("actions", "twist", "has no controller that takes twists", fix)
    if contract.actions == "joints" and turning:
        problem, fix = "leads a hand, and actions are joints", "write actions: twist or hands, or servo_joint"
        file.refuse(f"controllers[{turning[0]}].kind", kind, problem, fix)
    if turning and contract.actions != "twist" and contract.teleop is not None:
        file.refuse("teleop", contract.teleop.type, "has no meaning for a hand that twists move", "remove it")
    if len(turning) > 1:
        problem = "is there twice, but an action has one twist"
        file.refuse(f"controllers[{turning[1]}].kind", kind, problem, "keep one of them")


def check_led(file: Fields, contract: Contract) -> None:
    """The hand that a controller leads is alone, is that of its joints, and is led by its base's axes."""
    led = [(i, c) for i, c in enumerate(contract.controllers) if c.kind in LEADS]
    if contract.actions != "hands" or not led or not contract.hands or not file.valid("controllers"):
        return
    (i, controller), (hand, arm) = led[0], contract.hands[0]
    if len(contract.hands) > 1:
        file.refuse(
            "hands", len(contract.hands), f"are too many beside {controller.kind}", "keep one of them"
        )
    if hand.beside:
        problem = f"has beside: true, but {controller.kind} leads the hand and no joint"
        file.refuse("hands", hand.name, problem, "leave beside out, or control its joints")
    if set(arm.joints) != set(controller.joints):
        problem = f"are not those of {hand.name}: {', '.join(arm.joints)}"
        file.refuse(f"controllers[{i}].joints", ", ".join(controller.joints), problem, "name exactly these")
    if controller.frame != hand.base:
        problem = f"is not the base of {hand.name}: {hand.base}"
        file.refuse(f"controllers[{i}].frame", controller.frame, problem, "write the same link")


def check_home(file: Fields, contract: Contract) -> None:
    """Home lies within the limits, and covers all joints of a controller or none of them."""
    if not (file.valid("home") and all(joint.name for joint in contract.joints)):
        return
    joints = {joint.name: joint for joint in contract.joints}
    for name, position in contract.home.items():
        if name not in joints:
            fix = closest(name, joints.keys() - contract.home.keys(), "fix its spelling")
            file.refuse(f"home.{name}", position, "is not a joint of joints", fix)
            continue
        lower, upper = joints[name].lower, joints[name].upper
        if position < lower or position > upper:
            problem = f"is not within its limits {lower:g} to {upper:g}"
            file.refuse(f"home.{name}", position, problem, "move it inside")
    for controller in contract.controllers:
        absent = [name for name in controller.joints if name not in contract.home]
        if absent and len(absent) < len(controller.joints) and file.valid("home"):
            file.missing(f"home.{absent[0]}", f"add it, since home names other joints of {controller.topic}")


def _unique(file: Fields, named: Iterable[tuple[str, str]], fix: str) -> bool:
    """Refuse names that occur twice; returns whether there were none."""
    first: dict[str, str] = {}
    once = True
    for path, name in named:
        if name in first:
            file.refuse(path, name, f"is already {first[name]}", fix)
            once = False
        elif name:
            first[name] = path
    return once
