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


MOST: dict[str, int] = {
    "depth": 512,
    "width": 1 << 16,
    "mlp": 1 << 18,
    "heads": 1024,
    "kv_heads": 1024,
    "head_dim": 4096,
    "image_size": 4096,
    "patch": 4096,
    "vocab": 1 << 22,
    "action_vocab": 1 << 22,
    "horizon": 4096,
    "max_prompt": 1 << 16,
    "action_dim": 4096,
    "state_dim": 4096,
}
"""What no network here comes near: lists of so many layers, and embeddings of so many tokens, are made
before the weights' files show that they are not there. The largest published models have 126 layers of width
16384."""
_MOST_OTHERS = 1 << 20
_SHOWN = 1 << 62


def check_whole(config: Any, where: str) -> None:
    """Raise ValueError unless every field of type int is a whole number from 1 to what MOST allows."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type != "int":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{where}.{field.name} is {value!r}; it must be a whole number of at least 1.")
    check_most(config, where)


def check_most(config: Any, where: str) -> None:
    """Raise ValueError if a field of type int is more than MOST allows."""
    for field in fields(config):
        value, most = getattr(config, field.name), MOST.get(field.name, _MOST_OTHERS)
        if field.type == "int" and isinstance(value, int) and value > most:
            shown = value if value < _SHOWN else "beyond 2^62"
            raise ValueError(f"{where}.{field.name} is {shown}; no model here has more than {most}.")


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
