"""From images and words to keys and values: a policy's plain functions, captured.

Without capture a small network is bound by kernel launches. Captured, it runs the same kernels over the same
shapes, so the results are bit for bit those of the plain path. Therefore nothing is padded: there is a graph
for each set of image sizes, and for each number of images and of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.memory.host_buffers import Inputs
from vla_accel_ros.engine.stages.memory.upload import ImageUpload
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.policies import CapturablePolicy, WordedPolicy
from vla_accel_ros.models.policy import PolicyInputs


class Resize(Stage):
    """Resizes images of certain sizes, from `upload` to pixels float32 [V, C, S, S]."""

    def __init__(self, policy: CapturablePolicy, pixels: Tensor, memory: Any) -> None:
        super().__init__(policy.device, memory=memory)
        self._policy, self._pixels = policy, pixels
        self.upload = ImageUpload(policy.pixel_rule, policy.image_size, len(pixels), policy.device)

    def body(self) -> None:
        self._pixels.copy_(self._policy.resized([view.pixels for view in self.upload.views.now]))


class PlainPrefix(Stage):
    """Computes an observation's prefix.

    variant: its numbers of images and of words. pixels float32 [most images, C, S, S]: Resize writes them. kv
    [layers, 1, kv_heads, max_tokens, head_dim]: the result; if the policy decodes, also seen [n, W]: image
    tokens, and hidden [W]: of the last token.
    """

    variant: tuple[int, int]

    def __init__(self, policy: CapturablePolicy, pool: KVPool, most: int, memory: Any) -> None:
        super().__init__(policy.device, most, memory)
        config, size = policy.config, policy.image_size
        self._policy, self._network = policy, cast(Any, policy.model)
        shape = len(config.image_names), policy.pixel_rule.channels, size, size
        self.pixels = torch.zeros(shape, device=self.device)
        words, state = (torch.int64, (config.max_prompt,)), (torch.float32, (config.state_dim,))
        self._inputs = Inputs(self.device, {"words": words, "state": state})
        self.kv = like_slot(pool)
        width = config.prefix.width
        images = config.max_tokens - config.max_prompt if policy.decodes else 0
        self.seen, self.hidden = pool.k.new_zeros(images, width), pool.k.new_zeros(width)
        self._lengths: dict[tuple[int, int], int] = {}

    @property
    def length(self) -> int:
        """Number of tokens in the variant's prefixes; known once it has run or was captured."""
        return self._lengths[self.variant]

    def set(self, words: Sequence[int], state: Tensor) -> None:
        """words: ids of the prompt, as many as the variant has; state float32 [S], normalised. Does not
        block."""
        padded = torch.zeros(self._inputs.fields["words"].shape, dtype=torch.int64)
        padded[: len(words)] = torch.tensor(words)
        self._inputs.put(words=padded, state=state)

    def body(self) -> None:
        policy, (views, words), given = self._policy, self.variant, self._inputs.fields
        inputs = PolicyInputs(self.pixels[:views], (), given["words"][:words], given["state"])
        if policy.decodes:
            worded = cast(WordedPolicy, policy)
            seen = worded.see(inputs)
            self.seen[: len(seen)].copy_(seen)
            embeddings = worded.join(seen, inputs.tokens)
        else:
            embeddings = policy.embed(inputs)
        tokens = self._lengths[self.variant] = embeddings.shape[1]
        hidden, _ = self._network.prefix(embeddings, out=first_tokens(self.kv, tokens))
        if policy.decodes:
            self.hidden.copy_(hidden[0, -1])


def like_slot(pool: KVPool) -> KV:
    """Memory for the keys and values of one slot, shaped as `KVPool.view` returns them, for max_tokens
    tokens."""
    return KV(*(torch.zeros_like(part[0]).unsqueeze(1) for part in (pool.k, pool.v)))


def first_tokens(kv: KV, tokens: int) -> KV:
    """The keys and values of the first tokens."""
    return KV(kv.k[:, :, :, :tokens], kv.v[:, :, :, :tokens])
