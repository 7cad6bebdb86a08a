"""Declares the parameter tables as ROS parameters with descriptors and ranges, and reads them back.

rclpy enforces types, ranges and read-only by itself. It has no choices, so a callback refuses wrong ones. The
callback also refuses a change that `ros2 param get` would show but nothing would read: a lifecycle node reads
its parameters when it is configured.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.node import Node

from vla_accel_ros.nodes.params.parameter import Parameter
from vla_accel_ros.option import options

Record = TypeVar("Record")
_INT_MAX = 2**62
_CLOCK = Parameter("use_sim_time", False, "Take the time from /clock; declared by rclpy.")


def declare(node: Node, table: Iterable[Parameter], settable: Callable[[], bool] | None = None) -> None:
    """Declare every parameter of the table. Raises rclpy's error for a value of a wrong type or range.

    settable: whether a change of a parameter that is not live would be read; None for a node that reads its
        parameters only when it starts.
    """
    by_name = {parameter.name: parameter for parameter in table}
    for parameter in by_name.values():
        default = _value_by_former_name(node, parameter)
        declared = node.declare_parameter(parameter.name, default, _descriptor(parameter))
        parameter.check(declared.value)

    def check(changes: list) -> SetParametersResult:
        try:
            for change in changes:
                parameter = _CLOCK if change.name == _CLOCK.name else by_name.get(change.name)
                if parameter is None:
                    continue
                parameter.check(change.value)
                if not (parameter.live or change.value == value(node, change.name)):
                    _refuse_unless(settable, change.name, value(node, change.name))
        except (TypeError, ValueError) as error:
            return SetParametersResult(successful=False, reason=str(error))
        _overrides(node).update((change.name, change) for change in changes if change.name in by_name)
        return SetParametersResult(successful=True)

    node.add_on_set_parameters_callback(check)
    _warn_of_unknown(node, by_name)


def _refuse_unless(settable: Callable[[], bool] | None, name: str, present: Any) -> None:
    if settable is None:
        raise ValueError(
            f"parameter {name!r} is read when the node starts, as {present!r}: restart it with another value"
        )
    if not settable():
        raise ValueError(
            f"parameter {name!r} is read when the node is configured, as {present!r}: deactivate, clean up, "
            "set it, configure"
        )


def _overrides(node: Node) -> dict[str, Any]:
    """The parameters that files and command lines set, and those that were set since."""
    return getattr(node, "_parameter_overrides", {})


def _value_by_former_name(node: Node, parameter: Parameter) -> Any:
    """The value that is given by an earlier name of the parameter, with a warning; else its default."""
    overrides = _overrides(node)
    former = overrides.pop(parameter.former, None)
    if former is None:
        return parameter.default
    node.get_logger().warning(f"parameter {parameter.former!r} is now called {parameter.name!r}: rename it")
    return overrides.setdefault(parameter.name, former).value


def _warn_of_unknown(node: Node, by_name: dict[str, Parameter]) -> None:
    """Warn, since ROS silently ignores a misspelt parameter. A file for several nodes may contain others'."""
    for name in _overrides(node):
        if name not in by_name and name != _CLOCK.name and not name.startswith("qos_overrides."):
            near = difflib.get_close_matches(name, by_name, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(by_name))}"
            node.get_logger().warning(f"parameter {name!r} is unknown to this node: {hint}")


def given(node: Node, name: str) -> bool:
    """Whether a file, a command line or a service has set a declared parameter."""
    return name in _overrides(node)


def value(node: Node, name: str) -> Any:
    """The present value of a declared parameter."""
    return node.get_parameter(name).value


def record(node: Node, kind: type[Record], prefix: str = "", **others: Any) -> Record:
    """A record of options from the parameters that were made of it (params.parameter.parameters). others: its
    fields that are no options."""
    return kind(**{name: value(node, f"{prefix}{name}") for name in options(kind)}, **others)


def _descriptor(parameter: Parameter) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(description=parameter.description, read_only=parameter.read_only)
    descriptor.dynamic_typing = parameter.takes_bool
    if parameter.choices:
        descriptor.additional_constraints = f"one of {', '.join(parameter.choices)}"
    low, high = parameter.minimum, parameter.maximum
    if type(parameter.default) is float and not (low is None and high is None):
        descriptor.floating_point_range = [
            FloatingPointRange(
                from_value=float("-inf") if low is None else float(low),
                to_value=float("inf") if high is None else float(high),
            )
        ]
    elif type(parameter.default) is int and not (low is None and high is None):
        descriptor.integer_range = [
            IntegerRange(
                from_value=-_INT_MAX if low is None else int(low),
                to_value=_INT_MAX if high is None else int(high),
            )
        ]
    return descriptor
