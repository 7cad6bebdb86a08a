"""Reads the parts of a contract from the fields of its file.

Each reader checks what a single entry of the file can show. Checks across entries (no duplicates, one
controller for every joint) are in contract.py. Limits are inline or come from a URDF. If both are given the
inline one holds, and may only be narrower: a contract that allows more than the robot's own description has a
mistake in one of the two, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vla_accel_ros.contract.files.fields import Fields
from vla_accel_ros.contract.files.urdf import UrdfJoint
from vla_accel_ros.contract.parts import (
    FURTHEST,
    INPUT_FORM,
    INPUT_TOPIC,
    LONGEST_AGE_S,
    MAX_PIXELS,
    TOPIC,
    TWO_TURNS,
    UNITS,
    Camera,
    ChunkTiming,
    Controller,
    FollowingError,
    Joint,
    Stream,
    Twist,
)
from vla_accel_ros.control.chunking.plausibility import LONGEST_STEP_S, SHORTEST_STEP_S
from vla_accel_ros.control.following.joint_faults import LASTING_S
from vla_accel_ros.extensions import CONTROLLERS, ControllerKind, controller_kind, names

TRANSPORTS = ("raw", "compressed", "ring")
_IMAGE = r"(?!\s)[^\x00-\x1f\x7f]+(?<!\s)"
"""The model decides, so a name may have dots, hyphens and the like (`cam-high`, `wrist.left`)."""
_TOPIC_FORM = "a relative topic name such as camera/front/image_raw, of at most 150 characters"
# A limit beyond these (rad or m, per s, per s^2) cannot be a joint's. By slower ones a way takes years.
_NARROWEST, _SLOWEST, _FASTEST, _HARDEST = 1e-6, 1e-5, 1e3, 1e5
_FASTEST_TURN = 60.0
"""[rad/s] What no turning joint reaches; in degrees it is a slow one's speed."""
_LONGEST_STOP_S = 10.0
_LIMITS = ("lower", "upper", "velocity", "acceleration")
_MOST_PIXELS = 7680 * 4320
_LEAST_CROP, _LONGEST_HISTORY = 0.25, 100


@dataclass(frozen=True)
class RobotLimits:
    """Defaults for joints. joints: of the URDF in `file`, whose text it is. acceleration: for joints that
    give none."""

    file: Path | None
    joints: Mapping[str, UrdfJoint]
    acceleration: float | None = None
    text: str = ""


def read_stream(fields: Fields) -> Stream:
    """Read the stream that is all of `fields`."""
    stream = _stream(fields)
    fields.close()
    return stream


def read_camera(name: str, fields: Fields) -> Camera:
    """Read the camera called `name`."""
    stream = _stream(fields)
    pixels = fields.number("max_pixels", above=0, most=_MOST_PIXELS, default=MAX_PIXELS)
    camera = Camera(
        **vars(stream),
        name=name,
        image=fields.text("image", _IMAGE, "the policy's name of an image"),
        transport=fields.choice("transport", TRANSPORTS, "raw"),
        info=fields.text("info", INPUT_TOPIC, INPUT_FORM, default=""),
        max_pixels=int(pixels) if math.isfinite(pixels) else MAX_PIXELS,
        rotation=fields.choice("rotation", (0, 90, 180, 270), 0),
        crop=fields.number("crop", least=_LEAST_CROP, most=1.0, default=1.0),
        history=_history(fields, stream.rate_hz) if fields.has("history") else (),
    )
    fields.close()
    return camera


def _history(fields: Fields, rate_hz: float) -> tuple[tuple[str, float], ...]:
    """Images of earlier frames, with their ages [s]: no two, nor the newest, can be of one frame."""
    ages_s, least_s, most_s = fields.named_numbers("history"), 0.99 / rate_hz, _LONGEST_HISTORY / rate_hz
    for image, age_s in sorted(ages_s.items(), key=lambda item: item[1]):
        if age_s < least_s or age_s > most_s:
            problem = f"is not from {least_s:.3g} to {most_s:.3g}, at {rate_hz:g} Hz and after other frames"
            fields.refuse(
                f"history.{image}", age_s, problem, "give seconds before the newest, or lower rate_hz"
            )
        least_s = age_s + 0.99 / rate_hz
    return tuple(ages_s.items())


def read_joint(fields: Fields, robot: RobotLimits, actions: str) -> Joint:
    """Read one joint. actions: of the contract; those of a hand need no word for its joints, and with twists
    no joint has deltas."""
    name = fields.text("name")
    described = _described(fields, robot, name)
    inline = _inline_limits(fields)
    lower, upper, velocity = (_limit(fields, robot, described, key, inline[key]) for key in _LIMITS[:3])
    if lower >= upper:
        fields.refuse("lower", lower, f"is not below upper = {upper:g}", "swap or fix them")
    acceleration = robot.acceleration if inline["acceleration"] is None else inline["acceleration"]
    if acceleration is None:
        fields.missing("acceleration", "add it, here or for all joints as acceleration of the whole file")
        acceleration = math.nan
    _check_size(fields, lower, upper, velocity, acceleration)
    choices = ("absolute",) if actions == "twist" else ("delta", "absolute", "velocity")
    default = {} if actions == "joints" else {"default": "absolute"}
    action = fields.choice("action", choices, **default)
    per_unit = fields.number("per_unit", above=0.0) if action == "velocity" else 1.0
    units, reach = _units(fields)
    action_line = _line(fields, "action_map")[0] if fields.has("action_map") else None
    pair = fields.flag("pair") if fields.has("pair") else False
    following = _following_error(fields)
    continuous = _continuous(fields, robot, described, units[0])
    slides = units[0] == "m" or (described is not None and described.kind == "prismatic")
    if not (continuous or slides):
        _check_turns(fields, lower, upper, velocity, reach)
    for key in _LIMITS:
        if slides and fields.contains(f"{key}_deg"):
            fields.refuse(f"{key}_deg", "in degrees", "is for joints that turn, not slide", f"write {key}")
    fields.close()
    limits = lower, upper, velocity, acceleration
    return Joint(name, *limits, action, *units, following, continuous, per_unit, action_line, pair)


def _described(fields: Fields, robot: RobotLimits, name: str) -> UrdfJoint | None:
    """The joint in the URDF; None without one, or if it cannot be used."""
    described = robot.joints.get(name)
    if name and robot.file is not None and described is None:
        fix = f"name one of its moving joints ({', '.join(robot.joints) or 'it has none'})"
        fields.refuse("name", name, f"is not a moving joint of {robot.file}", fix)
    if described is not None and described.mimics:
        fix = f"name {described.mimics} alone, which moves both"
        fields.refuse("name", name, f"mimics {described.mimics} in {robot.file}", fix)
    elif described is not None and described.problem:
        fields.refuse("name", name, "cannot be used", described.problem)
        return None
    return described


def _continuous(fields: Fields, robot: RobotLimits, described: UrdfJoint | None, unit: str) -> bool:
    """Whether the joint turns without end: as the file says, else as the URDF does."""
    endless = described is not None and described.kind == "continuous"
    if not fields.has("continuous"):
        return endless
    continuous = fields.flag("continuous")
    if continuous and described is not None and not endless:
        fields.refuse("continuous", True, f"is not so in {robot.file}: {described.kind}", "remove it")
    if continuous and unit == "m":
        fields.refuse("continuous", True, "is for joints that turn, but unit is m", "remove one of them")
    return continuous


def _check_size(fields: Fields, lower: float, upper: float, velocity: float, acceleration: float) -> None:
    """Refuse values that cannot be a joint's: a million for "no limit" would leave the joint without a limit.
    nan was refused before."""
    for key, value in (("lower", lower), ("upper", upper)):
        if abs(value) > FURTHEST:
            fields.refuse(key, value, f"is further than {FURTHEST:g} from zero", "give the joint's range")
    if 0.0 < upper - lower < _NARROWEST:
        fields.refuse("lower", lower, f"leaves less than {_NARROWEST:g} to upper = {upper:g}", "fix them")
    if velocity > _FASTEST:
        fields.refuse("velocity", velocity, f"is more than {_FASTEST:g} per s", "give the joint's own")
    elif velocity < _SLOWEST:
        fields.refuse("velocity", velocity, f"is less than {_SLOWEST:g} per s", "give the joint's own")
    elif acceleration > _HARDEST:
        fields.refuse("acceleration", acceleration, f"is more than {_HARDEST:g} per s^2", "give the joint's")
    elif velocity > _LONGEST_STOP_S * acceleration:
        problem = f"means that a stop from velocity = {velocity:g} takes more than {_LONGEST_STOP_S:g} s"
        fields.refuse("acceleration", acceleration, problem, "raise it, or lower velocity")


def _check_turns(fields: Fields, lower: float, upper: float, velocity: float, reach: float) -> None:
    """Refuse limits that no turning joint has: numbers of the policy (degrees, percent) taken for radians.

    reach: what `map` says that the robot itself counts up to, 0 without it.
    """
    furthest = max(TWO_TURNS, reach) + 1e-3
    key, value = max(("lower", lower), ("upper", upper), key=lambda limit: abs(limit[1]))
    if (abs(value) > furthest or upper - lower > furthest) and fields.valid(key):
        turned = f"is {math.degrees(value):.0f} degrees"
        problem = f"{turned}, but no joint turns by more than two turns without continuous: true"
        fields.refuse(key, value, problem, f"write {key} in rad, or {key}_deg for degrees")
    if velocity > _FASTEST_TURN and not reach and fields.valid("velocity"):
        problem = f"is {velocity / (2 * math.pi):.0f} turns a second"
        fields.refuse("velocity", velocity, problem, "write velocity in rad/s, or velocity_deg for degrees")


def _following_error(fields: Fields) -> FollowingError | None:
    """`off`, or the greatest distance and the time for which more is tolerated; None if the file gives
    none."""
    if fields.take_off("following_error"):
        return FollowingError(math.inf, 0.0)
    if not fields.has("following_error"):
        return None
    limits = fields.child("following_error")
    error = FollowingError(limits.number("rad", above=0.0), limits.number("s", above=0.0, default=LASTING_S))
    limits.close()
    return error


def _units(fields: Fields) -> tuple[tuple[str, int, float, float | None], float]:
    """unit, sign, offset and gain of a joint; and the greatest distance among the robot's points of a map, 0
    without one."""
    if not fields.has("map"):
        unit = fields.choice("unit", tuple(UNITS), "rad")
        return (unit, fields.choice("sign", (1, -1), 1), fields.number("offset", default=0.0), None), 0.0
    for key in ("unit", "sign", "offset"):
        if fields.has(key):
            fields.refuse(key, fields.take(key), "is given together with map", "remove one of them")
    (gain, offset), reach = _line(fields, "map")
    return ("rad", 1, offset, gain), reach


def _line(fields: Fields, key: str) -> tuple[tuple[float, float], float]:
    """Scale and offset of a line through two points, and the greatest distance among the robot's."""
    points = fields.child(key)
    (a, b), (c, d) = points.numbers("robot", 2), points.numbers("policy", 2)
    if a == b:
        points.refuse("robot", [a, b], "is one point twice", "give two different positions")
    if c == d:
        points.refuse("policy", [c, d], "is one point twice", "give two different values")
    points.close()
    if not fields.valid(key):
        return (math.nan, math.nan), math.inf
    gain = (d - c) / (b - a)
    if not (math.isfinite(gain) and gain):
        fields.refuse(key, gain, "is not a usable scale", "give points further apart")
    return (gain, c - gain * a), max(abs(a), abs(b), abs(b - a))


def _inline_limits(fields: Fields) -> dict[str, float | None]:
    """The limits that the joint's entry gives, in rad or m: under their names, or in degrees under NAME_deg,
    but not some in each. None for those that it does not give."""
    plain = [key for key in _LIMITS if fields.contains(key)]
    degrees = [f"{key}_deg" for key in _LIMITS if fields.contains(f"{key}_deg")]
    if plain and degrees:
        fields.refuse(degrees[0], "in degrees", f"stands beside {plain[0]}", "give all limits in one unit")
    limits = {}
    for key in _LIMITS:
        above = 0.0 if key in ("velocity", "acceleration") else None
        limits[key] = fields.optional(key, above=above)
        turned = fields.optional(f"{key}_deg", above=above)
        if turned is not None:
            limits[key] = math.radians(turned)
    return limits


def _limit(
    fields: Fields, robot: RobotLimits, described: UrdfJoint | None, key: str, inline: float | None
) -> float:
    """The inline limit, else that of the URDF; nan after a mistake."""
    usual: float | None = None if described is None else getattr(described, key)
    if inline is not None:
        if usual is not None and (inline < usual if key == "lower" else inline > usual):
            problem = f"is wider than {usual:g} in {robot.file}"
            fields.refuse(key, inline, problem, "narrow it, or fix the URDF if that is wrong")
        return inline
    if usual is not None:
        return usual
    if described is not None:
        fields.missing(key, f"add it, since {robot.file} gives this {described.kind} joint none")
    elif robot.file is None:
        fields.missing(key, "add it")
    return math.nan


def read_controller(fields: Fields) -> Controller:
    """Read one controller."""
    name = fields.choice("kind", names(CONTROLLERS), "joint_trajectory")
    kind = _kind(fields, name) if fields.valid("kind") else None
    topic = fields.text("topic", TOPIC, _TOPIC_FORM)
    joints = fields.texts("joints", r"\S(.*\S)?", "a joint's name")
    rate_hz, frame = 0.0, ""
    if kind is None:  # the kind decides which of these are allowed
        for key in ("rate_hz", "frame", "max_effort"):
            fields.take(key, None)
    elif kind.rates_hz is not None:
        low, high = kind.rates_hz
        rate_hz = fields.number("rate_hz")
        if rate_hz < low or rate_hz > high:
            fix = f"give a rate from {low:g} to {high:g}"
            fields.refuse("rate_hz", rate_hz, f"does not suit {name}", fix)
    elif fields.has("rate_hz"):
        problem = f"is not for {name}, which interpolates by itself"
        fields.refuse("rate_hz", fields.take("rate_hz"), problem, "remove it, or fix kind")
    goals, max_effort = kind is not None and bool(kind.goals), 0.0
    action = fields.text("action", TOPIC, _TOPIC_FORM, **({} if goals else {"default": ""}))
    if goals:
        max_effort = fields.number("max_effort", least=0.0, default=0.0)
        if name == "gripper_command" and len(joints) > 1:
            problem = "are several joints, but GripperCommand has one position"
            fields.refuse("joints", ", ".join(joints), problem, "name one, or write kind: parallel_gripper")
    elif fields.has("max_effort"):
        fields.refuse("max_effort", fields.take("max_effort"), f"is not for {name}", "remove it, or fix kind")
    if kind is not None and kind.frame:
        frame = fields.text("frame", r"\S+", "a frame such as base_link")
    elif fields.has("frame"):
        fields.refuse("frame", fields.take("frame"), f"is not for {name}", "remove it, or fix kind")
    fields.close()
    return Controller(topic, joints, name, rate_hz, action, frame, max_effort)


def _kind(fields: Fields, name: str) -> ControllerKind | None:
    """The controller kind; None after a mistake: the package that provides it is broken."""
    try:
        return controller_kind(name)
    except ValueError as error:
        fields.refuse("kind", name, "cannot be used", str(error))
        return None


def read_twist(fields: Fields) -> Twist:
    """Read the meaning of twist actions."""
    per = fields.choice("per", ("step", "second"))
    twist = Twist(per, fields.number("linear", above=0.0), fields.number("angular", above=0.0))
    fields.close()
    return twist


def read_chunk(fields: Fields) -> ChunkTiming:
    """Read the times of a chunk."""
    step_dt_s = fields.number("step_dt_s", above=0.0)
    more, less = step_dt_s > LONGEST_STEP_S, step_dt_s < SHORTEST_STEP_S
    if more or less:
        limit = f"more than {LONGEST_STEP_S:g}" if more else f"less than {SHORTEST_STEP_S:g}"
        fields.refuse("step_dt_s", step_dt_s, f"is {limit} s between two actions", "give seconds")
    timing = ChunkTiming(step_dt_s, fields.number("max_age_s", above=0.0, most=LONGEST_AGE_S))
    fields.close()
    return timing


def _stream(fields: Fields) -> Stream:
    topic = fields.text("topic", INPUT_TOPIC, INPUT_FORM)
    rate_hz = fields.number("rate_hz", above=0.0)
    max_age_s = fields.number("max_age_s", above=0.0, most=LONGEST_AGE_S)
    if max_age_s <= 1.0 / rate_hz:
        fields.refuse("max_age_s", max_age_s, f"is not longer than one period at {rate_hz:g} Hz", "raise it")
    return Stream(topic, rate_hz, max_age_s)
