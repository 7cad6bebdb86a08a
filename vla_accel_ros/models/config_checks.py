"""How the sizes of every kind of network are read from JSON, and what they all must fulfil.

A size that cannot be is refused where it is said, in one sentence with its name, so that the modules that
build networks of it need not ask again.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vla_accel_ros.models.config import GemmaConfig


def read_fields(cls: type, data: Any, where: str) -> dict[str, Any]:
    """A copy of `data`, which has exactly the fields of `cls`; else ValueError naming those that differ.

    where: what the sentence calls it, "config.vision".
    """
    names = {field.name for field in fields(cls)}
    given = dict(data) if isinstance(data, dict) else {}
    if set(given) != names:
        raise ValueError(
            f"{where} must have exactly the fields {sorted(names)}: missing {sorted(names - set(given))}, "
            f"unknown {sorted(set(given) - names)}."
        )
    return given


def check_whole(config: Any, where: str) -> None:
    """Raise ValueError unless every field of type int is a whole number of at least 1."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type == "int" and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{where}.{field.name} is {value!r}; it must be a whole number of at least 1.")


def check_expert(prefix: GemmaConfig, expert: GemmaConfig) -> None:
    """Raise ValueError unless the action expert can attend to the prefix, and embed a flow time."""
    for name in ("depth", "kv_heads", "head_dim", "heads"):
        if getattr(prefix, name) != getattr(expert, name):
            raise ValueError(
                f"prefix.{name} {getattr(prefix, name)} differs from expert.{name} "
                f"{getattr(expert, name)}; the expert attends to the prefix, make them equal."
            )
    if expert.width % 2:
        raise ValueError(f"expert.width {expert.width} is odd; the time embedding needs an even one.")


def check_image_names(names: tuple[str, ...]) -> None:
    """Raise ValueError unless there is a camera, and none twice."""
    if not names or len(set(names)) != len(names):
        raise ValueError(f"image_names {names} must be one or more different names.")
