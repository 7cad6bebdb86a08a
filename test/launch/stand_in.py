"""A stand-in for the `launch` and `launch_ros` packages, which the Python package index does not have.

It knows the names and keywords our launch files use, as they are in Humble, Jazzy and Kilted alike, so that
an unknown one is an error, and it carries a launch file out as far as what would be started. It is no launch
system.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@dataclass(frozen=True)
class DeclareLaunchArgument:
    name: str
    default_value: str | None = None
    description: str = ""
    choices: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LaunchConfiguration:
    variable_name: str

    def perform(self, context: Mapping[str, str]) -> str:
        return context[self.variable_name]


@dataclass(frozen=True)
class ParameterValue:
    value: str | LaunchConfiguration
    value_type: type

    def perform(self, context: Mapping[str, str]) -> Any:
        text = resolve(self.value, context)
        return (
            {"true": True, "false": False}[text.lower()] if self.value_type is bool else self.value_type(text)
        )


@dataclass(frozen=True)
class OpaqueFunction:
    function: Callable[[Mapping[str, str]], list]


@dataclass(frozen=True)
class PythonLaunchDescriptionSource:
    location: str


@dataclass(frozen=True)
class IncludeLaunchDescription:
    source: PythonLaunchDescriptionSource
    launch_arguments: Iterable[tuple[str, str | LaunchConfiguration]] = ()


@dataclass(frozen=True)
class LogInfo:
    msg: str


@dataclass(frozen=True, kw_only=True)
class ExecuteProcess:
    cmd: list[str]
    name: str
    additional_env: dict[str, str] = field(default_factory=dict)
    output: str = "log"


@dataclass(frozen=True, kw_only=True)
class OnProcessExit:
    target_action: ExecuteProcess
    on_exit: list


@dataclass(frozen=True)
class RegisterEventHandler:
    event_handler: OnProcessExit


@dataclass(frozen=True)
class LaunchDescription:
    entities: list


@dataclass(frozen=True, kw_only=True)
class Node:
    package: str
    executable: str
    name: str | None = None
    namespace: str | LaunchConfiguration = ""
    parameters: list = field(default_factory=list)
    remappings: list[tuple[str, str]] = field(default_factory=list)
    ros_arguments: list = field(default_factory=list)
    arguments: list = field(default_factory=list)
    additional_env: dict[str, str] = field(default_factory=dict)
    respawn: bool | str | LaunchConfiguration = False
    respawn_delay: float = 0.0
    output: str = "log"
    emulate_tty: bool = False


@dataclass(frozen=True, kw_only=True)
class LifecycleNode(Node):
    def __post_init__(self) -> None:
        if self.name is None:
            raise TypeError("a LifecycleNode needs a name")


MODULES: dict[str, dict[str, object]] = {
    "launch": {
        "LaunchContext": Mapping,
        "LaunchDescription": LaunchDescription,
        "LaunchDescriptionEntity": object,
    },
    "launch.actions": {
        "DeclareLaunchArgument": DeclareLaunchArgument,
        "ExecuteProcess": ExecuteProcess,
        "IncludeLaunchDescription": IncludeLaunchDescription,
        "LogInfo": LogInfo,
        "OpaqueFunction": OpaqueFunction,
        "RegisterEventHandler": RegisterEventHandler,
    },
    "launch.event_handlers": {"OnProcessExit": OnProcessExit},
    "launch.launch_description_sources": {"PythonLaunchDescriptionSource": PythonLaunchDescriptionSource},
    "launch.substitutions": {"LaunchConfiguration": LaunchConfiguration},
    "launch_ros": {},
    "launch_ros.actions": {"LifecycleNode": LifecycleNode, "Node": Node},
    "launch_ros.parameter_descriptions": {"ParameterValue": ParameterValue},
}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import launch` find the stand-in for the rest of the test."""
    for name, contents in MODULES.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


@dataclass(frozen=True)
class Started:
    """A node as it would be started. parameters: what goes over those of its parameter files."""

    kind: type
    package: str
    executable: str
    name: str
    namespace: str
    files: tuple[Path, ...]
    parameters: dict[str, object]
    remappings: tuple[tuple[str, str], ...]
    ros_arguments: tuple[str, ...]
    environment: dict[str, str]
    respawn: bool
    respawn_delay: float


def resolve(value: Any, context: Mapping[str, str]) -> Any:
    return value.perform(context) if isinstance(value, LaunchConfiguration | ParameterValue) else value


def load(path: Path) -> list:
    """The entities of a launch file."""
    loader = SourceFileLoader(path.name.replace(".", "_"), str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module.generate_launch_description().entities


def declared(path: Path) -> dict[str, DeclareLaunchArgument]:
    """The arguments a launch file declares."""
    return {entity.name: entity for entity in load(path) if isinstance(entity, DeclareLaunchArgument)}


def start(path: Path, **arguments: str) -> list[Started]:
    """The nodes that `ros2 launch` would start, with these arguments and else the defaults."""
    return [entity for entity in everything(path, **arguments) if isinstance(entity, Started)]


def everything(path: Path, **arguments: str) -> list:
    """The nodes, and besides them the processes, handlers of events and lines of the log, as they stand in
    the launch file."""
    unknown = arguments.keys() - declared(path).keys()
    if unknown:
        raise TypeError(f"{path.name} does not declare {', '.join(sorted(unknown))}")
    return list(_carry_out(load(path), dict(arguments)))


def _carry_out(entities: list, context: dict[str, Any]) -> Iterable[Any]:
    for entity in entities:
        if isinstance(entity, DeclareLaunchArgument):
            context.setdefault(entity.name, entity.default_value)
        elif isinstance(entity, OpaqueFunction):
            yield from _carry_out(entity.function(context), context)
        elif isinstance(entity, IncludeLaunchDescription):
            passed = {name: resolve(value, context) for name, value in entity.launch_arguments}
            yield from everything(Path(entity.source.location), **passed)
        elif not isinstance(entity, Node):
            yield entity
        else:
            yield _started(entity, context)


def _started(node: Node, context: Mapping[str, str]) -> Started:
    resolved = [resolve(parameters, context) for parameters in node.parameters]
    inline = [parameters for parameters in resolved if isinstance(parameters, dict)]
    return Started(
        kind=type(node),
        package=node.package,
        executable=node.executable,
        name=node.name or node.executable,
        namespace=resolve(node.namespace, context),
        files=tuple(Path(parameters) for parameters in resolved if not isinstance(parameters, dict)),
        parameters={name: resolve(value, context) for part in inline for name, value in part.items()},
        remappings=tuple(node.remappings),
        ros_arguments=tuple(resolve(argument, context) for argument in node.ros_arguments),
        environment=dict(node.additional_env),
        respawn=str(resolve(node.respawn, context)).lower() == "true",
        respawn_delay=node.respawn_delay,
    )
