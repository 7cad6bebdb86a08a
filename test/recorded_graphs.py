"""Graphs on a CPU, for tests: what a body launches is recorded, and a replay computes that again from what
lies in the same tensors, into the same tensors. What Python decided is not decided again, as in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vla_accel_ros.engine.stages.stage import Stage


class Graph(TorchDispatchMode):
    """Records while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._launches = list[tuple[Any, Any, Mapping[str, Any], Any]]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._launches.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        with torch.inference_mode():
            for func, args, kwargs, result in self._launches:
                for into, value in zip(*map(tree_leaves, (result, func(*args, **kwargs))), strict=True):
                    if isinstance(into, Tensor) and _memory(into) != _memory(value):
                        into.copy_(value)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def recorded_graphs() -> Iterator[None]:
    """A block in which stages on a CPU are captured so."""

    @torch.inference_mode()
    def capture(stage: Stage, stream: None = None) -> None:
        if not stage.captured:
            stage.check()
            with Graph() as graph:
                stage.body()
            stage._graphs.put((stage.variant, stage.partition), graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "capture", capture)
        yield
