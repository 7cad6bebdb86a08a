"""The definition of a parameter (name, default, description, allowed values), and parameters of several
nodes.

Options that a node passes on are written down where they are read, as fields of a record (engine/config.py
and others); parameters are made from these fields (`parameters`). The tables beside this module are the only
place where all others are written down. The nodes declare them
from there (nodes/declare.py), and the tests check launch and parameter files against them; no table imports
rclpy, so both can. Lifecycle nodes read their parameters in on_configure, and refuse a change from then until
cleanup. Parameters of other nodes cannot change at all, unless they are live.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from vla_accel_ros.engine.config import EngineConfig

Value = bool | int | float | str


@dataclass(frozen=True)
class Parameter:
    """One declared parameter.

    minimum, maximum: inclusive range of a number, None for none. choices: the allowed strings, empty for any.
    read_only: cannot change after the node has started. live: a change takes effect at once. former: an
    earlier name, which files and command lines may still use. by_goal: whether `goal` may set it.
    """

    name: str
    default: Value
    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    read_only: bool = False
    live: bool = False
    former: str = ""
    by_goal: bool = False

    def __post_init__(self) -> None:
        self.check(self.default)

    @property
    def takes_bool(self) -> bool:
        """Whether true and false are two of its choices, which may also be given as bool."""
        return {"true", "false"} <= set(self.choices)

    def check(self, value: Value) -> None:
        """Raises TypeError or ValueError, in one sentence, for a value that this parameter may not have."""
        if self.takes_bool and isinstance(value, bool):
            return
        if type(value) is not type(self.default):
            raise TypeError(
                f"parameter {self.name!r} is {value!r} of type {type(value).__name__}: "
                f"give a {type(self.default).__name__}"
            )
        if self.choices and value not in self.choices:
            raise ValueError(f"parameter {self.name!r} is {value!r}: give one of {', '.join(self.choices)}")
        low, high = self.minimum, self.maximum
        if not isinstance(value, str) and not (
            (low is None or value >= low) and (high is None or value <= high)
        ):
            raise ValueError(f"parameter {self.name!r} is {value!r}: give a value from {low} to {high}")


def parameters(record: type, prefix: str = "", fleet: bool = False) -> tuple[Parameter, ...]:
    """The parameters of a record's options, in order, their names with a prefix. fleet: only those of many
    robots.

    `goal` of an engine sets other options, so the node must know which of them are set: parameter files show
    the defaults of these as comments.
    """
    options = [(field, field.metadata["option"]) for field in fields(record) if "option" in field.metadata]
    return tuple(
        Parameter(
            f"{prefix}{field.name}",
            description=option.help,
            former=option.former,
            by_goal=issubclass(record, EngineConfig) and field.name != "goal",
            **{
                "default": field.default,
                "minimum": option.minimum,
                "maximum": option.maximum,
                "choices": option.choices,
                **option.in_nodes,
            },
        )
        for field, option in options
        if option.parameter and (option.fleet or not fleet)
    )


def read_once(*table: Parameter) -> tuple[Parameter, ...]:
    """The table of a node that reads its parameters when it starts: only the live ones can change."""
    return tuple(replace(parameter, read_only=not parameter.live) for parameter in table)


AUTOSTART = Parameter(
    "autostart",
    False,
    "Configure and activate by itself at start; false leaves that to a lifecycle manager.",
    read_only=True,
)
CONTRACT = Parameter(
    "contract",
    "",
    "Contract file (YAML) of the robot: cameras, joints, limits, controllers. Empty: the simulated arm's.",
)
