"""pi0-FAST in plain torch: PaliGemma alone, whose head is a matrix of its own, but for openpi's.

Parameter names are those of lerobot's policy, which names an expert that it has not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.gemma import RMSNorm
from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.vision import Embeddings
from vla_accel_ros.models.pi.model import Worded, pali_gemma
from vla_accel_ros.models.pi_fast.config import PiFastConfig


class PiFast(Worded):
    """A pi0-FAST network of the given sizes, randomly initialised."""

    def __init__(self, config: PiFastConfig) -> None:
        super().__init__()
        self.config, self.first = config, -int(config.openpi)
        parts: dict[str, nn.Module] = {"model": pali_gemma(config)}
        if not config.openpi:
            parts["lm_head"] = nn.Linear(config.prefix.width, config.vocab, bias=False)
        self.paligemma_with_expert = Holder(paligemma=Holder(**parts))

    def set_precision(self, dtype: torch.dtype) -> PiFast:
        """Cast to dtype, except for patch and position embeddings and Gemma's norms, as pi0's."""
        self.to(dtype)
        for module in self.modules():
            if isinstance(module, Embeddings | RMSNorm):
                module.float()
        return self

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., W] -> scores of the next token [..., vocab]."""
        return F.linear(hidden, self.embed_table if self.config.openpi else self.paligemma.lm_head.weight)
