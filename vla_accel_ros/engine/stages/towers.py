"""The image encoder of a policy that acts by tokens as one captured stage: a camera's pixels to image tokens.

The towers are run as the plain model runs them, whose products are cuBLAS at their own size; what capturing
takes away is launching their thousand small kernels one by one. Pixels are made in the same graph.
"""

from __future__ import annotations

import threading
from functools import partial

import torch
from torch import Tensor

from vla_accel_ros.engine.preprocess import check_whole
from vla_accel_ros.engine.stages.stage import Stage, put
from vla_accel_ros.engine.stages.upload import ImageUpload
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.policies import AnyPolicy, WordedPolicy
from vla_accel_ros.types import Observation


class Towers(Stage):
    """upload: where the image is put; tokens [n, W]: what becomes of it."""

    def __init__(self, policy: WordedPolicy, ops: Ops) -> None:
        super().__init__(policy.device)
        config, rule, self._size = policy.config, policy.pixel_rule, policy.image_size
        self._policy, self._model, self._ops, self._lock = policy, policy.model, ops, threading.Lock()
        self.upload = ImageUpload(rule, self._size, 1, self.device)
        self._square = torch.zeros(1, 1, rule.channels * self._size**2, device=self.device)
        images = config.max_tokens - config.max_prompt
        self.tokens = torch.zeros(images, config.prefix.width, device=self.device, dtype=policy.kv_dtype)

    def embed(self, observation: Observation, policy: AnyPolicy, out: Tensor) -> tuple[int, int]:
        """Write the prefix of an observation into out [max_tokens, W]; returns its tokens and its words.

        policy: of a robot. Raises ValueError for what it cannot take, Torn if the image was overwritten. The
        image is needed no longer then.
        """
        given = policy.host_inputs(observation)
        words = torch.empty(len(given.tokens), dtype=torch.int64, device=self.device)
        with self._lock:
            self.upload.take(given.images, partial(check_whole, observation))
            self.capture()
            self.run()
            self.upload.read()
            put(words, torch.tensor(given.tokens))
            embeddings = self._policy.join(self.tokens, words)[0]
            out[: len(embeddings)].copy_(embeddings)
        return len(embeddings), len(words)

    def body(self) -> None:
        self._ops.patches(self.upload.views, self._size, self._square)
        pixels = self._square.view(1, -1, self._size, self._size)
        self.tokens.copy_(self._model.encode(pixels)[0])
