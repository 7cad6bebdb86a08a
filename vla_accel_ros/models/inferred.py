"""Read a network's sizes off the shapes of its tensors, for checkpoints whose config does not give them.

A header may say any shape, so each is checked before an axis of it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from vla_accel_ros.models.config import GemmaConfig, VisionConfig

Stack = TypeVar("Stack", bound=GemmaConfig)
Shapes = Mapping[str, tuple[int, ...]]


@contextmanager
def tensors_of(folder: str) -> Iterator[None]:
    """Turn the KeyError of a tensor that is not there into a ValueError that asks for `folder`; also a
    decorator."""
    try:
        yield
    except KeyError as error:
        raise ValueError(
            f"the weights have no tensor {error.args[0]}, so they do not tell the model's sizes; give "
            f"{folder}."
        ) from error


def axes(shapes: Shapes, name: str, count: int) -> tuple[int, ...]:
    """Return a tensor's shape. Raises KeyError if there is no such tensor, ValueError unless it has `count`
    axes and none is empty."""
    shape = shapes[name]
    if len(shape) != count or 0 in shape:
        raise ValueError(
            f"{name} has shape {list(shape)}, but {count} axes and no empty one tell the model's sizes; copy "
            "or convert the checkpoint again."
        )
    return shape


def depth(shapes: Shapes, root: str) -> int:
    """Return the number of layers whose tensors begin with `root` and a number, at least 1."""
    numbers = (name[len(root) :].split(".")[0] for name in shapes if name.startswith(root))
    return 1 + max((int(number) for number in numbers if number.isascii() and number.isdigit()), default=0)


def heads(width: int, head_dim: int, root: str) -> int:
    """Return the number of heads. Raises ValueError naming `root` unless they fill the width."""
    if width % head_dim:
        raise ValueError(
            f"{root}: a width of {width} is no multiple of {head_dim}, so it does not tell the number of "
            'heads; add a config.json with the field "vla_accel_ros", with all sizes.'
        )
    return width // head_dim


def siglip(shapes: Shapes, root: str, head_dim: int) -> VisionConfig:
    """Return the sizes of a SigLIP with transformers' names. Raises as `axes` and `heads`."""
    patches, _ = axes(shapes, root + "embeddings.position_embedding.weight", 2)
    width, _, patch, _ = axes(shapes, root + "embeddings.patch_embedding.weight", 4)
    return VisionConfig(
        width=width,
        depth=depth(shapes, root + "encoder.layers."),
        mlp=axes(shapes, root + "encoder.layers.0.mlp.fc1.weight", 2)[0],
        heads=heads(width, head_dim, root),
        image_size=patch * round(patches**0.5),
        patch=patch,
    )


def stack(kind: type[Stack], shapes: Shapes, root: str, head_dim: int, **known: Any) -> Stack:
    """Return the sizes of a Gemma or Llama stack with transformers' names. known: fields that no tensor
    shows. Raises as `axes` and `heads`."""
    layer = root + "layers.0."
    rows, width = axes(shapes, layer + "self_attn.q_proj.weight", 2)
    return kind(
        width=width,
        depth=depth(shapes, root + "layers."),
        mlp=axes(shapes, layer + "mlp.gate_proj.weight", 2)[0],
        heads=heads(rows, head_dim, root),
        kv_heads=heads(axes(shapes, layer + "self_attn.k_proj.weight", 2)[0], head_dim, root),
        head_dim=head_dim,
        **known,
    )


def number(data: Mapping[str, Any], field: str, default: float | None = None) -> float:
    """Return the number under the last part of `field`. Raises ValueError naming the field if it is none."""
    value = data.get(field.rpartition(".")[2], default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{field} is {value!r}; it must be a number.")
    return float(value)


def whole(data: Mapping[str, Any], field: str, default: int | None = None, least: int = 1) -> int:
    """Return the whole number under the last part of `field`. Raises ValueError naming the field if it is
    none, or less than `least`."""
    value = data.get(field.rpartition(".")[2]) if isinstance(data, Mapping) else None
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{field} is {value!r}; it must be a whole number of at least {least}.")
    return value
