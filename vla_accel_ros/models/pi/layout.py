"""Modules that only hold others, so that parameter names are those of the openpi checkpoints.

The published names come from wrapping Hugging Face's PaliGemma and Gemma in one module. Keeping the names
exact lets a checkpoint load without a table of translations. The expert's own `lm_head` is not here: nothing
reads it, and in the published models it is half a gigabyte.
"""

from __future__ import annotations

from torch import nn

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.gemma import Gemma
from vla_accel_ros.models.layers.vision import SigLIP


class VisionTower(nn.Module):
    """`vision_tower.vision_model`"""

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.vision_model = SigLIP(config.vision)


class Projector(nn.Module):
    """`multi_modal_projector.linear`"""

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.vision.width, config.prefix.width)


class PaliGemmaModel(nn.Module):
    """`paligemma.model`"""

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.vision_tower = VisionTower(config)
        self.multi_modal_projector = Projector(config)
        self.language_model = Gemma(config.prefix, modulated=False, vocab=config.vocab)


class PaliGemma(nn.Module):
    """`paligemma`, whose `lm_head` is the token embedding under a second name."""

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.model = PaliGemmaModel(config)
        self.lm_head = nn.Linear(config.prefix.width, config.vocab, bias=False, device="meta")
        self.tie_weights()

    def tie_weights(self) -> None:
        self.lm_head.weight = self.model.language_model.embed_tokens.weight


class GemmaExpert(nn.Module):
    """`gemma_expert`"""

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.model = Gemma(config.expert, modulated=config.kind == "pi05")


class PaliGemmaWithExpert(nn.Module):
    """`paligemma_with_expert`"""

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.paligemma = PaliGemma(config)
        self.gemma_expert = GemmaExpert(config)
