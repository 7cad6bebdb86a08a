"""A stage of consecutive layers, some of which may be computed alone, and how to group them.

The graph of some layers begins with what the earlier layers left in the stage's buffers, so it has the same
kernels and numbers as one graph of all layers. Recording a graph runs its layers, so record all parts first,
and then compute them in order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from vla_accel_ros.engine.stages.stage import Stage

Part = tuple["Layered", tuple[int, int]]
"""A stage and a range of its layers: the first, and the one after the last."""


class Layered(Stage):
    """A stage of layers. costs: of each layer, comparable with those of other stages. variant: the layers to
    compute, (first, end); None = all."""

    def __init__(self, device: torch.device, costs: Sequence[float]) -> None:
        super().__init__(device)
        self.costs = tuple(costs)
        self._left: dict[int, Any] = {}  # by the layer that adds it

    @property
    def computed(self) -> tuple[int, int]:
        """The layers that a call computes: the first, and the one after the last."""
        return cast("tuple[int, int]", self.variant or (0, len(self.costs)))

    def body(self) -> None:
        first, end = self.computed
        if first == 0:
            self._enter()
        hidden = self._left[first] if first else None
        for index in range(first, end):
            hidden = self._layer(index, hidden)
        if end == len(self.costs):
            self._leave(hidden)
        else:
            self._left[end] = hidden

    @contextmanager
    def only(self, layers: tuple[int, int]) -> Iterator[None]:
        """Records and calls in the block are of these layers alone."""
        self.variant = layers
        try:
            yield
        finally:
            self.variant = None

    @abstractmethod
    def _enter(self) -> None:
        """Compute the first layer's input from the stage's inputs."""

    @abstractmethod
    def _layer(self, index: int, left: Any) -> Any:
        """Compute a layer. left: what the layer before left in buffers to be added, None before the first;
        returns what this layer leaves."""

    @abstractmethod
    def _leave(self, left: Any) -> None:
        """Compute the stage's outputs from the last layer's."""


def layer_cost(rows: int, keys: int, width: int, attended: int, qkv: int, mlp: int) -> float:
    """Number of operations of a layer.

    keys: read by each row; attended, qkv, mlp: columns of attention's output, of the product before it, and
    of all matrices of the MLP together.
    """
    return 2.0 * rows * (width * (qkv + attended + mlp) + 2 * keys * attended)


def grouped(stages: Sequence[Layered], count: int) -> list[list[Part]]:
    """The layers of some stages, one stage after another, in `count` groups of about the same cost.

    Raises ValueError if there are fewer layers.
    """
    layers = [(stage, index) for stage in stages for index in range(len(stage.costs))]
    groups: list[list[Part]] = []
    for size in sizes([stage.costs[index] for stage, index in layers], count):
        group, layers = layers[:size], layers[size:]
        parts = [(stage, [index for owner, index in group if owner is stage]) for stage in stages]
        groups.append([(stage, (indices[0], indices[-1] + 1)) for stage, indices in parts if indices])
    return groups


def sizes(costs: Sequence[float], count: int) -> list[int]:
    """How many of these layers, in order, are in each of `count` groups of about the same cost; at least one
    each.

    Raises ValueError if there are fewer layers.
    """
    if not 1 <= count <= len(costs):
        raise ValueError(f"{len(costs)} layers cannot be in {count} groups; give 1 to {len(costs)}.")
    numbers, remaining = list[int](), list(costs)
    for groups in range(count, 0, -1):
        share, size, cost = sum(remaining) / groups, 1, remaining[0]
        while len(remaining) - size >= groups and (groups == 1 or cost + remaining[size] / 2 <= share):
            cost += remaining[size]
            size += 1
        numbers.append(size)
        remaining = remaining[size:]
    return numbers
