"""The image encoder of a policy that acts by tokens as one captured stage: from a camera's pixels to image
tokens.

The towers run the plain model's functions, whose products are cuBLAS at their own size. Capturing saves the
launches of their thousand small kernels. The same graph prepares the pixels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from vla_accel_ros.engine.stages.memory.offload import LayerRing
from vla_accel_ros.engine.stages.memory.offload_report import OffloadReport, measure
from vla_accel_ros.engine.stages.memory.upload import ImageUpload
from vla_accel_ros.engine.stages.stage import Stage, put
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.layers.vit import Blocks, Tower
from vla_accel_ros.models.policies import AnyPolicy, WordedPolicy
from vla_accel_ros.types import Observation

MATRICES = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
"""The matrices of a block that can be streamed."""


class Towers(Stage):
    """Image encoders as a stage. upload: takes the image; tokens [n, W]: the result.

    offload: share of each tower's blocks whose weights are streamed, see engine.stages.memory.offload. Raises
    ValueError if the host has too little memory for them.
    """

    def __init__(self, policy: WordedPolicy, ops: Ops, offload: float = 0.0) -> None:
        super().__init__(policy.device)
        config, rule, self._size = policy.config, policy.pixel_rule, policy.image_size
        self._policy, self._model, self._ops, self._lock = policy, policy.model, ops, threading.Lock()
        self.upload = ImageUpload(rule, self._size, 1, self.device)
        self._square = torch.zeros(1, 1, rule.channels * self._size**2, device=self.device)
        backbone = self._model.vision_backbone
        self._towers = {
            tower: _ring(tower, offload, self.device)
            for tower in (backbone.featurizer, backbone.fused_featurizer)
        }
        images = config.max_tokens - config.max_prompt
        self.tokens = torch.zeros(images, config.prefix.width, device=self.device, dtype=policy.kv_dtype)

    def embed(self, observation: Observation, policy: AnyPolicy, out: Tensor) -> tuple[int, int]:
        """Write the embeddings of an observation into out [max_tokens, W]; returns the numbers of its tokens
        and of its words.

        policy: the robot's. Raises ValueError for an observation that the policy cannot take, Torn if the
        image was overwritten. The image is not needed after this.
        """
        inputs = policy.host_inputs(observation)
        words = torch.empty(len(inputs.tokens), dtype=torch.int64, device=self.device)
        with self._lock:
            self.upload.take(inputs.images, observation.check_intact)
            self.capture()
            self.run()
            self.upload.read()
            put(words, torch.tensor(inputs.tokens))
            embeddings = self._policy.join(self.tokens, words)[0]
            out[: len(embeddings)].copy_(embeddings)
        return len(embeddings), len(words)

    def body(self) -> None:
        self._ops.patches(self.upload.views, self._size, self._square)
        pixels = self._square.view(1, -1, self._size, self._size)
        # Both towers begin to copy their weights before either is computed.
        dino, siglip = [
            _blocks(tower, iter(ring)) if ring.streamed else None for tower, ring in self._towers.items()
        ]
        self.tokens.copy_(self._model.encode(pixels, dino, siglip)[0])

    @torch.inference_mode()
    def measure_offload(self) -> OffloadReport:
        """What streaming weights costs and saves, with a black image in the buffers."""
        with self._lock:
            self.upload.take([np.zeros((self._size, self._size, 3), np.uint8)])
            report = measure(self, list(self._towers.values()))
            self.upload.read()
        return report


def _ring(tower: Tower, offload: float, device: torch.device) -> LayerRing:
    layers = [[(cast(nn.Linear, block.get_submodule(name)),) for name in MATRICES] for block in tower.blocks]
    return LayerRing(layers, offload, device)


def _blocks(tower: Tower, ring: Iterator[tuple[Tensor, ...]]) -> Blocks:
    """The tower's blocks, each with the matrices from the ring."""
    for block, matrices in zip(tower.blocks, ring, strict=True):
        weights = zip((f"{name}.weight" for name in MATRICES), matrices, strict=True)
        yield partial(functional_call, block, dict(weights))
