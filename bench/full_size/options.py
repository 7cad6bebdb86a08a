"""Parses options of an engine, such as "staggered=16"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from vla_accel_ros.engine.config import EngineConfig


def read_options(words: Sequence[str], setting: str) -> dict[str, Any]:
    """Options by their names in EngineConfig. Raises ValueError, which names the setting, for an invalid
    word."""
    types: dict[str, Any] = {one.name: type(one.default) for one in fields(EngineConfig)}
    given: dict[str, Any] = {}
    for word in words:
        name, found, value = word.partition("=")
        if not found or name not in types:
            raise ValueError(f"'{word}' in '{setting}' is no option of an engine with a value.")
        if types[name] is bool and value not in ("true", "false"):
            raise ValueError(f"'{word}' in '{setting}' is neither true nor false.")
        given[name] = value == "true" if types[name] is bool else types[name](value)
    return given
