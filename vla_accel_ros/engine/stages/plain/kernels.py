"""Has the residual streams of a policy's plain functions computed by kernels, on a GPU that has them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cached_property, wraps
from typing import TypeVar

from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.kernels.ops import Ops, ops_for
from vla_accel_ros.models.layers.residual import computing

S = TypeVar("S", bound="PlainStage")


class PlainStage(Stage):
    """A stage whose body is of a policy's plain functions."""

    _joined = False

    @cached_property
    def ops(self) -> Ops | None:
        """The stage's own kernels, None without a GPU or triton."""
        usable = self.device.type == "cuda" and importlib.util.find_spec("triton") is not None
        return ops_for(self.device) if usable else None

    def check(self) -> None:
        """See Stage. The first run of all joins matrices, which later ones read early."""
        if not self._joined:
            self._joined = True
            self.body()
        super().check()


def by_kernels(body: Callable[[S], None]) -> Callable[[S], None]:
    """Decorate a PlainStage's body."""

    @wraps(body)
    def computed(stage: S) -> None:
        with computing(stage.ops):
            body(stage)

    return computed
