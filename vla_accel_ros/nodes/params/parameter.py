"""What a parameter is: name, default, what it means, what it may be; and those that several nodes have.

The tables beside this module are the one place a parameter is written down. The nodes declare from them
(nodes/declare.py), the tests check launch and parameter files against them, and none imports rclpy so that
both can. Lifecycle nodes read their parameters in on_configure, and refuse a change from then until cleanup;
those of other nodes cannot change at all, unless they are live.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Value = bool | int | float | str


@dataclass(frozen=True)
class Parameter:
    """One declared parameter.

    minimum, maximum: inclusive range of a number, None for none. choices: the allowed strings, empty for any.
    read_only: cannot change after the node has started. live: a change takes effect at once.
    """

    name: str
    default: Value
    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    read_only: bool = False
    live: bool = False

    def __post_init__(self) -> None:
        self.check(self.default)

    @property
    def takes_bool(self) -> bool:
        """Whether true and false are two of its choices, which may be given as such."""
        return {"true", "false"} <= set(self.choices)

    def check(self, value: Value) -> None:
        """Raise TypeError or ValueError, in one sentence, for a value this parameter may not have."""
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


def read_once(*table: Parameter) -> tuple[Parameter, ...]:
    """The table of a node that reads its parameters when it starts: none changes, but the live ones."""
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
