"""Read a network's sizes off the shapes of its tensors, for checkpoints whose config does not give them.

A header may say any shape, so each is checked before an axis of it is used.
"""

from __future__ import annotations

from collections.abc import Mapping

Shapes = Mapping[str, tuple[int, ...]]


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
