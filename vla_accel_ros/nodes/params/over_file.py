"""Launch arguments that set a parameter of a node, over its parameter file. No ROS: launch files import it.

Every option of an engine is one of them (engine/config.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.nodes.params.parameter import Parameter, parameters
from vla_accel_ros.nodes.params.tables import NODES

ENGINE_OPTIONS = tuple(parameter.name for parameter in parameters(EngineConfig))
FLEET_OPTIONS = tuple(parameter.name for parameter in parameters(EngineConfig, fleet=True))


def parameters_of(node: str, names: Iterable[str]) -> list[Parameter]:
    """The parameters of these names."""
    table = {parameter.name: parameter for parameter in NODES[node]}
    return [table[name] for name in names]


def launch_arguments(node: str, names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Name, default and description of the launch argument of each parameter."""
    return [
        (parameter.name, "", f"{parameter.description} Not given: as in params_file.")
        for parameter in parameters_of(node, names)
    ]
