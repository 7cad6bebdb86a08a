"""From images and words to keys and values: a policy's plain functions, captured.

Without capture a small network is bound by kernel launches. Captured, it runs the same kernels over the same
shapes, so the results are bit for bit those of the plain path. Therefore nothing is padded: there is a graph
for each set of image sizes, and for each number of images and of words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.results import dtype_of, fill, shape_of
from vla_accel_ros.engine.stages.memory.host_buffers import Inputs
from vla_accel_ros.engine.stages.memory.upload import ImageUpload
from vla_accel_ros.engine.stages.plain.kernels import PlainStage, by_kernels
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.models.layers import gemma
from vla_accel_ros.models.micro_requests import KV, PIXELS, WORDS, Leaf
from vla_accel_ros.models.policies import CapturablePolicy, computed


class Resize(Stage):
    """Resizes images of certain sizes, from `upload` to pixels float32 [V, C, S, S]."""

    def __init__(self, policy: CapturablePolicy, pixels: Tensor, memory: Any) -> None:
        super().__init__(policy.device, memory=memory)
        self._policy, self._pixels = policy, pixels
        self.upload = ImageUpload(policy.pixel_rule, policy.image_size, len(pixels), policy.device)

    def body(self) -> None:
        self._pixels.copy_(self._policy.resized([view.pixels for view in self.upload.views.now]))


class PlainPrefix(PlainStage):
    """Computes an observation's prefix.

    variant: its numbers of images and of words. pixels float32 [most images, C, S, S]: Resize writes them.
    """

    variant: tuple[int, int]

    def __init__(self, policy: CapturablePolicy, pool: KVPool, most: int, memory: Any) -> None:
        super().__init__(policy.device, most, memory)
        config, size, self._policy = policy.config, policy.image_size, policy
        shape = len(config.image_names), policy.pixel_rule.channels, size, size
        self.pixels = torch.zeros(shape, device=self.device)
        words, state = (torch.int64, (config.max_prompt,)), (torch.float32, (config.state_dim,))
        fields = {leaf.name: (dtype_of(leaf, policy), leaf.shape) for leaf in policy.chain.inputs}
        self._inputs = Inputs(self.device, {"words": words, "state": state, **fields})
        self._rooms = rooms_of(policy, pool, policy.chain.kept)
        self._left: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def left(self) -> dict[str, Any]:
        """The results of the variant's frames, by name; known once it has run or was captured."""
        return self._left[self.variant]

    @property
    def length(self) -> int:
        """Number of tokens in their keys and values."""
        return int(self.left[KV].k.shape[3]) if KV in self.left else 0

    def set(self, words: Sequence[int], state: Tensor, more: Mapping[str, Tensor]) -> None:
        """words: ids of the prompt, as many as the variant has; state float32 [S], normalised; more: further
        inputs. Does not block."""
        padded = torch.zeros(self._inputs.fields["words"].shape, dtype=torch.int64)
        padded[: len(words)] = torch.tensor(words)
        self._inputs.put(words=padded, state=state, **more)

    @by_kernels
    def body(self) -> None:
        (views, words), fields = self.variant, self._inputs.fields
        given: dict[str, Any] = {**fields, WORDS: fields[WORDS][:words], PIXELS: self.pixels[:views]}
        for micro in self._policy.chain.of_frame:
            given |= computed(self._policy, micro, given)
        self._left[self.variant] = {
            name: filled(room, name, given[name]) for name, room in self._rooms.items()
        }


def rooms_of(policy: CapturablePolicy, pool: KVPool, leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    """Memory for results of one frame, as large as declared; for keys and values shaped as `KVPool.view`
    returns them."""
    rooms: dict[str, Any] = {}
    for name, leaf in leaves.items():
        if name == KV:
            rooms[name] = gemma.KV(*(torch.zeros_like(part[0]).unsqueeze(1) for part in (pool.k, pool.v)))
        else:
            rooms[name] = torch.zeros(
                shape_of(leaf, policy), device=policy.device, dtype=dtype_of(leaf, policy)
            )
    return rooms


def filled(room: Any, name: str, value: Any) -> Any:
    """`fill` for a result, or for both tensors of keys and values."""
    if isinstance(value, gemma.KV):
        return gemma.KV(*(fill(into, name, part) for into, part in zip(room, value, strict=True)))
    return fill(room, name, value)
