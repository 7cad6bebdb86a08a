"""Extension points by name: model families, controllers, policies of engines, rules of fleets, horizons.

This package's own are listed in BUILT_IN, so adding one here means its code and one line below. Another
package adds its own by an entry point of the same group, which is found once the package is installed:

    [project.entry-points."vla_accel_ros.model_families"]
    my_family = "my_package.checkpoint:FORMAT"     # a models.checkpoints.formats.Format
    [project.entry-points."vla_accel_ros.controllers"]
    my_gripper = "my_package.kind:KIND"            # a ControllerKind
    [project.entry-points."vla_accel_ros.policies"]
    my_policy = "my_package.policy:make"           # makes a policy from an engine.rules.rule.Setup
    [project.entry-points."vla_accel_ros.horizons"]
    my_horizon = "my_package.horizon:make"         # makes a control.horizon.HorizonRule from its numbers
    [project.entry-points."vla_accel_ros.fleet_rules"]
    my_order = "my_package.order:make"             # makes a rule from a fleet.rules.rule.FleetSetup

Nothing is imported before it is used.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

MODEL_FAMILIES = "vla_accel_ros.model_families"
CONTROLLERS = "vla_accel_ros.controllers"
POLICIES = "vla_accel_ros.policies"
HORIZONS = "vla_accel_ros.horizons"
FLEET_RULES = "vla_accel_ros.fleet_rules"
OLD_GROUPS = {FLEET_RULES: "vla_accel_ros.fleet_policies"}
"""Earlier names of groups, which other packages may still use."""


@dataclass(frozen=True)
class ControllerKind:
    """A kind of controller that a contract may name. It holds what a contract needs to know; only the
    trajectory node imports the adapter, because that needs ROS.

    message: type of its command topic, such as `std_msgs/msg/Float64MultiArray`.
    adapter: `module:Class`, a subclass of nodes.adapters.adapter.Adapter.
    rates_hz: lowest and highest rate of its commands [Hz]; None for a controller that interpolates and takes
        whole trajectories, for which a contract gives no rate_hz.
    frame: whether a contract gives the frame_id of its commands.
    goals: type of the action that executes them, such as `control_msgs/action/GripperCommand`; the topic is
        then only for whoever records or looks. Empty for a controller that listens to its topic.
    """

    message: str
    adapter: str
    rates_hz: tuple[float, float] | None = None
    frame: bool = False
    goals: str = ""


BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    # In the order in which they are tried: formats that name themselves come first.
    MODEL_FAMILIES: {
        "pi0_fast": "vla_accel_ros.models.pi_fast.checkpoint:FORMAT",
        "pi0_fast_jax": "vla_accel_ros.models.pi_fast.orbax_checkpoint:FORMAT",
        "lerobot": "vla_accel_ros.models.pi.lerobot_checkpoint:FORMAT",
        "groot": "vla_accel_ros.models.groot.checkpoint:FORMAT",
        "smolvla": "vla_accel_ros.models.smolvla.checkpoint:FORMAT",
        "xvla": "vla_accel_ros.models.xvla.checkpoint:FORMAT",
        "mimic_video": "vla_accel_ros.models.mimic_video.checkpoint:FORMAT",
        "fastwam": "vla_accel_ros.models.fastwam.checkpoint:FORMAT",
        "openvla_oft": "vla_accel_ros.models.openvla_oft.checkpoint:FORMAT",
        "openvla": "vla_accel_ros.models.openvla.checkpoint:FORMAT",
        "orbax": "vla_accel_ros.models.pi.orbax_checkpoint:FORMAT",
        "pi": "vla_accel_ros.models.pi.checkpoint:FORMAT",
    },
    CONTROLLERS: {
        "joint_trajectory": ControllerKind(
            "trajectory_msgs/msg/JointTrajectory",
            "vla_accel_ros.nodes.adapters.joint_trajectory:JointTrajectoryAdapter",
        ),
        "forward_command": ControllerKind(
            "std_msgs/msg/Float64MultiArray",
            "vla_accel_ros.nodes.adapters.forward_command:ForwardCommandAdapter",
            rates_hz=(100.0, 1000.0),
        ),
        "gripper_command": ControllerKind(
            "std_msgs/msg/Float64MultiArray",
            "vla_accel_ros.nodes.adapters.gripper:GripperAdapter",
            rates_hz=(20.0, 100.0),
            goals="control_msgs/action/GripperCommand",
        ),
        "parallel_gripper": ControllerKind(
            "std_msgs/msg/Float64MultiArray",
            "vla_accel_ros.nodes.adapters.gripper:GripperAdapter",
            rates_hz=(20.0, 100.0),
            goals="control_msgs/action/ParallelGripperCommand",
        ),
        "servo_joint": ControllerKind(
            "control_msgs/msg/JointJog",
            "vla_accel_ros.nodes.adapters.servo:ServoJointAdapter",
            rates_hz=(20.0, 250.0),
        ),
        "servo_twist": ControllerKind(
            "geometry_msgs/msg/TwistStamped",
            "vla_accel_ros.nodes.adapters.servo:ServoTwistAdapter",
            rates_hz=(20.0, 250.0),
            frame=True,
        ),
        "servo_pose": ControllerKind(
            "geometry_msgs/msg/PoseStamped",
            "vla_accel_ros.nodes.adapters.servo:ServoPoseAdapter",
            rates_hz=(20.0, 250.0),
            frame=True,
        ),
    },
    POLICIES: {
        "whole": "vla_accel_ros.engine.rules.chunks:whole",
        "staggered": "vla_accel_ros.engine.rules.chunks:staggered",
        "throughput": "vla_accel_ros.engine.rules.throughput:throughput",
        "batches": "vla_accel_ros.engine.rules.batches:batches",
        "tokens": "vla_accel_ros.engine.rules.tokens:frames",
    },
    HORIZONS: {
        "all": "vla_accel_ros.control.horizon_rules:make_all",
        "static": "vla_accel_ros.control.horizon_rules:make_static",
        "update_ratio": "vla_accel_ros.control.horizon_rules:make_update_ratio",
    },
    FLEET_RULES: {
        "fifo": "vla_accel_ros.fleet.rules.orders:FirstInFirstOut",
        "las": "vla_accel_ros.fleet.rules.orders:LeastAttainedService",
        "oldest": "vla_accel_ros.fleet.rules.orders:OldestTaskFirst",
        "kairos": "vla_accel_ros.fleet.rules.kairos:HighestWaitRatio",
        "aged_remaining": "vla_accel_ros.fleet.rules.remaining:AgedRemaining",
        "aged_srpt": "vla_accel_ros.fleet.rules.remaining:AgedSrpt",
    },
}
"""Group -> name -> the object, or its reference as `module:name`."""
BASES: Mapping[str, ControllerKind] = {
    message: ControllerKind(
        f"geometry_msgs/msg/{message}", "vla_accel_ros.nodes.adapters.base:BaseAdapter", (10.0, 250.0), framed
    )
    for message, framed in (("TwistStamped", True), ("Twist", False))
}
"""Of mobile bases, by their message."""


def names(group: str) -> tuple[str, ...]:
    """Return the names in a group: this package's own in order, then those of other packages, sorted."""
    return (*BUILT_IN[group], *sorted(_added(group).keys() - BUILT_IN[group].keys()))


def find(group: str, name: str) -> Any:
    """Return the object called `name` in a group.

    Raises ValueError, with one sentence, if there is none, if two packages provide it, or if its import
    fails.
    """
    built_in, added = BUILT_IN[group], _added(group).get(name, ())
    providers = [*(["vla_accel_ros"] if name in built_in else []), *map(_provider, added)]
    if not providers:
        available = ", ".join(names(group)) or "none"
        raise ValueError(
            f"{name!r} is none of {group} ({available}); fix its spelling, or install the package with it."
        )
    if len(providers) > 1:
        raise ValueError(
            f"{name!r} of {group} is provided by {' and by '.join(providers)}; uninstall all but one."
        )
    if name in built_in:
        provided = built_in[name]
        return load(provided) if isinstance(provided, str) else provided
    try:
        return added[0].load()
    except Exception as error:  # a foreign module may raise anything when it is imported
        raise ValueError(
            f"{name!r} of {group}, provided by {providers[0]} as {added[0].value}, cannot be imported "
            f"({error!r}); fix or uninstall that package."
        ) from error


def controller_kind(name: str) -> ControllerKind:
    """Return the kind of controller of that name. Raises ValueError as find does, or if it is no
    ControllerKind."""
    kind = BASES.get(name) or find(CONTROLLERS, name)
    if not isinstance(kind, ControllerKind):
        raise ValueError(f"{name!r} of {CONTROLLERS} is a {type(kind).__name__}; let it be a ControllerKind.")
    return kind


def load(reference: str) -> Any:
    """Return the object at `module:name`. Raises ValueError if it cannot be imported."""
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{reference} cannot be imported ({error}); fix or reinstall the package that has it."
        ) from error


@functools.cache
def _added(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return what other packages add, by name; several entries if packages conflict. Cached for the
    process."""
    added: dict[str, tuple[EntryPoint, ...]] = {}
    groups = [name for name in (group, OLD_GROUPS.get(group)) if name]
    for entry in (entry for name in groups for entry in entry_points(group=name)):
        known = added.get(entry.name, ())
        # One package may be on the path twice, or be in a group by both of its names.
        if (entry.value, _provider(entry)) not in [(other.value, _provider(other)) for other in known]:
            added[entry.name] = (*known, entry)
    return added


def _provider(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
