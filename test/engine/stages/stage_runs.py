"""What stages of a precision make of one frame, and how far two results are apart."""

from __future__ import annotations

import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.precision import EXACT
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.pi.model import Pi


class Run:
    """What stages make of the same frame. int8: of precision w8a8."""

    def __init__(
        self, model: Pi, precision: str = EXACT, int8: Int8 | None = None, guide: Inpainting | None = None
    ) -> None:
        config, g = model.config, torch.Generator().manual_seed(3)
        self.pool = KVPool(config.prefix, 2, config.max_tokens, torch.device("cpu"), torch.float32)
        self.stages = Stages(model, self.pool, precision=precision, int8=int8)
        images = torch.randint(256, (2, 28, 28, 3), generator=g).byte().numpy()
        prompt = torch.randint(4, config.vocab, (7,), generator=g)
        noise = torch.randn(1, config.horizon, config.action_dim, generator=g)
        state = torch.randn(1, config.state_dim, generator=g)
        (self.length,) = self.stages.observe([images], [prompt], [1])
        self.tokens = self.stages.encode(2).tokens.clone()
        self.kv = self.pool.view(1, self.length)
        self.hidden = self.stages.last_hidden(1, self.length)
        guides = None if guide is None else [guide]
        self.actions = self.stages.act(noise, state, [1], [self.length], 4, guides).actions


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())
