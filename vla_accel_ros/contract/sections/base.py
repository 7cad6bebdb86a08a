"""The section `base` of a contract: a mobile base that the last numbers of a row move, by velocities.

    base: {topic: diff_drive_controller/cmd_vel, message: TwistStamped, frame: base_link, rate_hz: 20,
           axes: {x: 1.0, yaw: 1.0}, linear: 0.4, angular: 1.0, linear_acceleration: 0.8,
           angular_acceleration: 2.0, timeout_s: 0.5, odometry: diff_drive_controller/odom}

axes: what the policy counts, in its order -> what one unit is in m/s or rad/s; a negative one turns the sign.
odometry: a nav_msgs/Odometry, whose velocities are then the last numbers of the state.
"""

from __future__ import annotations

from dataclasses import replace

from vla_accel_ros.contract.files.fields import Fields
from vla_accel_ros.contract.parts import INPUT_FORM, INPUT_TOPIC, TOPIC, Base, Controller, Joint
from vla_accel_ros.extensions import BASES

AXES = {"x": ("linear.x", 0), "y": ("linear.y", 1), "yaw": ("angular.z", 5)}
"""Axis -> its name and its place among the six numbers of a twist."""
FRAMED = "TwistStamped"
_RATES_HZ = (10.0, 250.0)
_LONGEST_STOP_S, _LONGEST_TIMEOUT_S = 3.0, 2.0


def read_base(fields: Fields) -> Base:
    """Read the section."""
    message = fields.choice("message", tuple(BASES))
    limits = {key: fields.number(key, above=0.0) for key in ("linear", "angular")}
    changes = {key: fields.number(f"{key}_acceleration", above=0.0) for key in limits}
    for key, speed in limits.items():
        if speed > _LONGEST_STOP_S * changes[key]:
            problem = f"means that a stop from {key} = {speed:g} takes more than {_LONGEST_STOP_S:g} s"
            fields.refuse(f"{key}_acceleration", changes[key], problem, f"raise it, or lower {key}")
    rate_hz = fields.number("rate_hz", least=_RATES_HZ[0], most=_RATES_HZ[1])
    timeout_s = fields.number("timeout_s", above=0.0, most=_LONGEST_TIMEOUT_S)
    if timeout_s * rate_hz < 3.0:
        fields.refuse(
            "timeout_s", timeout_s, f"is less than three periods at {rate_hz:g} Hz", "raise rate_hz"
        )
    topic = fields.text("topic", TOPIC, "a relative topic name such as cmd_vel, of at most 150 characters")
    frame = fields.text("frame", r"\S+", "a frame such as base_link") if message == FRAMED else ""
    axes, places = list[Joint](), list[int]()
    for name, unit in fields.named_numbers("axes").items():
        if name not in AXES or not unit:
            problem, fix = (
                ("is no speed", "give one") if name in AXES else ("is unknown", "write x, y or yaw")
            )
            fields.refuse(f"axes.{name}", unit, problem, fix)
            continue
        half = AXES[name][0].partition(".")[0]
        speed, change = limits[half], changes[half]
        axis = Joint(f"base.{AXES[name][0]}", -speed, speed, speed, change, "velocity", per_unit=unit)
        axes.append(replace(axis, gain=1.0 / unit))
        places.append(AXES[name][1])
    base = Base(
        axes=tuple(axes),
        places=tuple(places),
        controller=Controller(topic, (), message, rate_hz, frame=frame),
        speeds=(limits["linear"], limits["angular"]),
        accelerations=(changes["linear"], changes["angular"]),
        timeout_s=timeout_s,
        odometry=fields.text("odometry", INPUT_TOPIC, INPUT_FORM, default=""),
    )
    fields.close()
    return base
