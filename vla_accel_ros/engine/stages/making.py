"""Makes the kernel stages of one engine, holds what they share, and records them for each partition.

A stage is made on first use, for the number of images, a prompt's bucket and the batch. Its class follows
from the precision and, for denoising, from the number of rows. All stages read the same folded weights and
write the same pool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.denoise import Denoise
from vla_accel_ros.engine.stages.denoise.int8 import DenoiseInt8
from vla_accel_ros.engine.stages.denoise.wide import MOST_NARROW, Wide
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.precision import EXACT, ROWS, Small, check
from vla_accel_ros.engine.stages.prefill.encode import Encode, EncodeFp8, tower_of
from vla_accel_ros.engine.stages.prefill.finish import Finish, FinishInt8
from vla_accel_ros.engine.stages.prefill.groups import Frame, Groups
from vla_accel_ros.engine.stages.prefill.int8 import EncodeInt8, PrefillInt8
from vla_accel_ros.engine.stages.prefill.prefill import Prefill, SmallPrefill
from vla_accel_ros.engine.stages.stage import InOrder, Memory, Stage
from vla_accel_ros.kernels.ops import Ops, ops_for
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.models.layers.few_bits import given
from vla_accel_ros.models.layers.gemma import KV, rotary_tables
from vla_accel_ros.models.pi import folding as pi
from vla_accel_ros.models.pi.folded import Cross, Expert, Prefix
from vla_accel_ros.models.processing.conventions import OPENPI
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.models.smolvla import folding as smolvla
from vla_accel_ros.models.smolvla.folding import Foldable
from vla_accel_ros.models.smolvla.model import SmolVLA

BUCKET = 16
"""Prompts are padded to a multiple of this."""

S = TypeVar("S", bound=Stage)


class MadeStages:
    """The stages of a model over a pool of prefixes.

    time_rule, solver: of the flow, see models.flow.sampling. ops: makes the kernels of a stage; None = those
    of the pool's device. prefix_ops: the same for encode and prefill; None = ops. precision: see
    engine.stages.precision; int8: its weights if it is one of ROWS there, None = not calibrated. rule: how
    pixels become the network's input. joints: numbers of an action that update magnitudes count if a call
    does not say; None = all. offload: share of the image encoder's layers whose weights are streamed, see
    engine.stages.memory.offload. groups: number of groups of layers in which `groups` can compute a prefix
    (engine.stages.prefill.groups), besides whole prefixes; 1 = none.
    partitions: streams by name, on which the stages for that partition are captured, so that their graphs
    keep its processors and priority; the key None means no partition.
    Raises RuntimeError on a GPU without triton; ValueError if the device does not have the precision, if
    offload does not fit it, or if the host has too little memory for the streamed weights.
    """

    def __init__(
        self,
        model: Foldable,
        pool: KVPool,
        time_rule: str = "openpi",
        ops: Callable[[], Ops] | None = None,
        precision: str = EXACT,
        rule: PixelRule = OPENPI.pixels,
        joints: int | None = None,
        groups: int = 1,
        prefix_ops: Callable[[], Ops] | None = None,
        offload: float = 0.0,
        solver: str = EULER,
        int8: Int8 | None = None,
    ) -> None:
        device, dtype, sizes = pool.k.device, pool.k.dtype, model.config.prefix
        self.model, self.pool, self.time_rule, self.rule = model, pool, time_rule, rule
        self.joints, self.solver = joints, solver
        check(precision, True, device, dtype)
        self.make_ops = ops or (lambda: ops_for(device))
        self._folding: Any = smolvla if isinstance(model, SmolVLA) else pi
        self.prefix: Prefix = self._folding.fold_prefix(model)
        self.small = Small(precision, model, self.prefix)
        self.int8 = (int8 or Int8.of(precision)) if precision in ROWS else None
        if offload and (self.small.in_vision or self.int8 is not None):
            raise ValueError(
                f"offload is vision and precision {precision}, whose image encoder has copies of its weights "
                "on the device; use one of them."
            )
        self.tower = tower_of(model, offload)
        self.carry = torch.zeros(pool.slots, sizes.width, device=device, dtype=dtype)
        most_tokens = len(model.config.image_names) * model.config.image_tokens
        self.images = torch.zeros(pool.slots, most_tokens, sizes.width, device=device, dtype=dtype)
        self.kv, self.crossed = _read_by_expert(pool, self.prefix.cross)
        last = pool.max_tokens + model.config.horizon
        positions = torch.arange(self.prefix.first, last + 1, device=device)[None]
        cos, sin = rotary_tables(positions, sizes.head_dim, torch.float32)
        half = sizes.head_dim // 2
        self.tables = cos[0, 0, :, :half].contiguous(), sin[0, 0, :, :half].contiguous()
        self._memory = Memory(device, dtype)
        self._experts: dict[int, Expert] = {}
        self._clean: dict[int, Expert] = {}
        self._stages: dict[Hashable, Stage] = {}
        self._chain = (prefix_ops or self.make_ops)()
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.partitions: dict[Hashable, torch.cuda.Stream | None] = {None: stream}
        self._making, self._observing, self._chained = threading.RLock(), threading.Lock(), InOrder(device)
        self._locks: dict[Hashable, threading.Lock] = {}
        self.groups = Groups(self, groups) if groups > 1 else None

    @property
    def takes_state(self) -> bool:
        """Whether the state is a token of the prefix."""
        return self.prefix.state_weight is not None

    def bucket(self, prompt: int) -> int:
        """The prompt length of the stage for a prompt."""
        return min(-(-max(prompt, 1) // BUCKET) * BUCKET, max(self.model.config.max_prompt, prompt))

    def encode(self, images: int) -> Encode:
        """The stage for so many images."""

        def make() -> Encode:
            common, layers = (self.model, self._chain, images, self.rule, self.tower), self.small.vision
            if self.int8 is not None:
                return EncodeInt8(*common, small=self.int8.vision(self.model))
            return Encode(*common) if layers is None else EncodeFp8(*common, small=layers)

        return self._stage(("encode", images), make)

    def prefill(self, views: int, prompt: int, batch: int = 1) -> Prefill:
        """The stage for `batch` frames with so many images each and the longest prompt."""
        encode, bucket = self.encode(batch * views), self.bucket(prompt)

        def make() -> Prefill:
            shared = self.model, self.prefix, self.pool, self.tables, self.carry
            common, layers = (*shared, self._chain, self._memory, encode, bucket, batch), self.small.prefix
            if self.int8 is not None:
                small = self.int8.prefix(self.prefix.layers, self.model.language_model)
                return PrefillInt8(*common, small=small)
            return Prefill(*common, self.crossed) if layers is None else SmallPrefill(*common, small=layers)

        return self._stage(("prefill", views, bucket, batch), make)

    def finish(self) -> Finish:
        """The stage for a prefix's last hidden state. It computes exactly if the last layer's exact weights
        are kept."""

        def make() -> Finish:
            common = self.model, self.prefix, self.pool, self.tables, self.carry, self.make_ops()
            stack = self.model.language_model
            if self.int8 is not None and given(stack.layers[-1]):
                return FinishInt8(*common, small=self.int8.prefix(self.prefix.layers, stack)[-1])
            return Finish(*common)

        return self._stage(("finish",), make)

    def denoise(self, batch: int, steps: int) -> Denoise:
        """The stage for so many chunks and steps."""

        def make() -> Denoise:
            if steps not in self._experts:
                other = next(iter(self._experts.values()), None)
                fold = self._folding.fold_expert
                self._experts[steps] = fold(self.model, steps, self.time_rule, other)
            config, expert = self.model.config, self._experts[steps]
            layers, clean = self.small.expert(expert.layers), partial(self.clean, steps)
            shared = config, expert, self.kv, self.tables, self.make_ops()
            common = *shared, batch, layers, clean, self.time_rule, self.joints, self.solver
            if self.int8 is not None and self.int8.in_denoise(self.pool.k.device):
                return DenoiseInt8(*common, small=self.int8.expert(self.model, expert.layers))
            rows = batch * (config.horizon + (expert.state_weight is not None))
            return Wide(*common) if rows > MOST_NARROW and layers is None else Denoise(*common)

        return self._stage(("denoise", batch, steps), make)

    @contextmanager
    def prefixing(self, frame: Frame | None = None) -> Iterator[None]:
        """One call with the buffers of encode and prefill, which all their stages share.

        If a frame is between two of its groups, the rest of it is computed first, unless it is `frame`.
        """
        with self._observing, self._chained.one():
            if self.groups is not None:
                self.groups.finish(frame)
            yield

    def record(self, stage: Stage, partition: Hashable) -> None:
        """Capture the stage for a partition, if it is not captured."""
        stage.partition = partition
        if not stage.captured:
            stage.capture(self.partitions[partition])

    def replay(self, stage: Stage, partition: Hashable) -> None:
        """Run the stage in a partition, after capturing it if needed."""
        self.record(stage, partition)
        stage.run()

    def partition(self) -> Hashable:
        """Name of the current stream's partition; None if it has none."""
        if len(self.partitions) == 1:
            return None
        current = current_stream(self.pool.k.device)
        return next((name for name, stream in self.partitions.items() if stream == current), None)

    def clean(self, steps: int) -> Expert:
        """The expert for so many steps, which exists already, with an added row for flow time 0."""
        with self._making:
            if steps not in self._clean:
                add = self._folding.with_clean_step
                self._clean[steps] = add(self.model, self._experts[steps], self.time_rule)
            return self._clean[steps]

    def _stage(self, key: Hashable, make: Callable[[], S]) -> S:
        with self._making:
            if key not in self._stages:
                self._locks[key] = threading.Lock()
                self._stages[key] = make()
            return self._stages[key]  # type: ignore[return-value]


def _read_by_expert(pool: KVPool, cross: Cross | None) -> tuple[list[tuple[Tensor, Tensor]], KV | None]:
    """Return the keys and values [slots, kv_heads, tokens, D] that each layer of the expert reads, and the
    memory of those that prefill computes for cross layers."""
    kv = list(zip(pool.k.unbind(1), pool.v.unbind(1), strict=True))
    if cross is None:
        return kv, None
    layers = cross.layers.tolist()
    crossed = KV(*(part[:, : len(layers)].clone() for part in (pool.k, pool.v)))
    for index, layer in enumerate(layers):
        kv[layer] = crossed.k[:, index], crossed.v[:, index]
    return kv, crossed
