"""A model, a pool and stages of some sizes."""

from __future__ import annotations

import numpy as np
import torch
from builders import make_config, make_model
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.kernels.ops import Ops


class Setting:
    """A model, its stages over a pool, and observations for them."""

    def __init__(self, kind: str, slots: int = 4, ops: type[Ops] | None = None) -> None:
        self.config = make_config(kind)
        self.model = make_model(self.config)
        self.pool = KVPool(
            self.config.prefix, slots, self.config.max_tokens, torch.device("cpu"), torch.float32
        )
        self.stages = Stages(self.model, self.pool, ops=ops)
        self.generator = torch.Generator().manual_seed(1)

    def frame(self, views: int, words: int) -> tuple[np.ndarray, Tensor]:
        images = torch.randint(256, (views, 28, 28, 3), generator=self.generator).byte().numpy()
        return images, torch.randint(4, self.config.vocab, (words,), generator=self.generator)

    def noise(self, batch: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, self.config.horizon, self.config.action_dim, generator=self.generator)
        return x, torch.randn(batch, self.config.state_dim, generator=self.generator)


class InParts(Ops):
    def parts(self, rows: int, weight: Tensor) -> int:
        return 4
