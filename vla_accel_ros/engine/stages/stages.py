"""The kernel stages of one engine: makes them, holds what they share, and has a call for each micro-request.

A stage is made for the number of images, a prompt's bucket and the batch, on first use or ahead of time by
`build`. All stages read the same folded weights and write the same pool. Calls of one stage share its
buffers, so each holds the stage's lock from its inputs to its outputs; on a GPU that is only the time to put
the work in the stream. The results are the plain model's, but for rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.denoise import Denoise, Form, Guides
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.kinds import denoise_stage, encode_stage, finish_stage, prefill_stage
from vla_accel_ros.engine.stages.memory.offload_report import OffloadReport, measure
from vla_accel_ros.engine.stages.precision import EXACT, ROWS, Small, check
from vla_accel_ros.engine.stages.prefill.encode import Encode, tower_of
from vla_accel_ros.engine.stages.prefill.finish import Finish
from vla_accel_ros.engine.stages.prefill.groups import Frame, Groups
from vla_accel_ros.engine.stages.prefill.prefill import Prefill
from vla_accel_ros.engine.stages.stage import InOrder, Memory, Stage
from vla_accel_ros.kernels.ops import Ops, ops_for
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.flow.sampling import Flow, Pending
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.models.layers.gemma import rotary_tables
from vla_accel_ros.models.pi.folded import Expert
from vla_accel_ros.models.pi.folding import fold_expert, fold_prefix, with_clean_step
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.conventions import OPENPI
from vla_accel_ros.models.processing.pixels import PixelRule

Progress = Callable[[str, int, int], None]
"""Called with what is made next, how many are made, and of how many."""

BUCKET = 16
"""Prompts are padded to a multiple of this."""

Images = Sequence[np.ndarray] | np.ndarray
"""uint8 [H, W, 3] each, of any sizes, or [V, H, W, 3] for one size."""


def powers_of_two(count: int) -> list[int]:
    """1, 2, 4, ... below count."""
    return [1 << power for power in range((count - 1).bit_length())]


CHUNKS = {
    Form.FREE: "chunks",
    Form.GUIDED: "guided chunks",
    Form.COMMITTED: "chunks with committed actions",
}

S = TypeVar("S", bound=Stage)


class Stages:
    """encode, prefill, denoise and finish of a model over a pool of prefixes.

    time_rule, solver: of the flow, see models.flow.sampling. ops: makes the kernels of a stage; None = those
    of the pool's device. prefix_ops: the same for encode and prefill; None = ops. precision: see
    engine.stages.precision; int8: its weights if it is one of ROWS there, None = not calibrated. rule: how
    pixels become the network's input. joints: numbers of an action that update magnitudes count if a call
    does not say; None = all. offload: share of the image encoder's layers whose weights are streamed, see
    engine.stages.memory.offload.
    partitions: streams by name, on which the stages for that partition are captured, so that their graphs
    keep its processors and priority; the key None means no partition. A call is for the partition of the
    current stream. groups: number of groups of layers in which `groups` can compute a prefix
    (engine.stages.prefill.groups), besides whole prefixes; 1 = none.
    Raises RuntimeError on a GPU without triton; ValueError if the device does not have the precision, if
    offload does not fit it, or if the host has too little memory for the streamed weights.
    """

    def __init__(
        self,
        model: Pi,
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
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.partitions: dict[Hashable, torch.cuda.Stream | None] = {None: stream}
        check(precision, True, device, dtype)
        self.make_ops = ops or (lambda: ops_for(device))
        self.prefix = fold_prefix(model.language_model)
        self.small = Small(precision, model, self.prefix)
        self.int8 = (int8 or Int8.of(precision)) if precision in ROWS else None
        if offload and (self.small.in_vision or self.int8 is not None):
            raise ValueError(
                f"offload is vision and precision {precision}, whose image encoder has copies of its weights "
                "on the device; use one of them."
            )
        self.tower = tower_of(model, offload)
        self.carry = torch.zeros(pool.slots, sizes.width, device=device, dtype=dtype)
        most = len(model.config.image_names) * model.config.vision.tokens
        self.images = torch.zeros(pool.slots, most, sizes.width, device=device, dtype=dtype)
        positions = torch.arange(pool.max_tokens + model.config.horizon + 1, device=device)[None]
        cos, sin = rotary_tables(positions, sizes.head_dim, torch.float32)
        half = sizes.head_dim // 2
        self.tables = cos[0, 0, :, :half].contiguous(), sin[0, 0, :, :half].contiguous()
        self._memory = Memory(device, dtype)
        self._experts: dict[int, Expert] = {}
        self._clean: dict[int, Expert] = {}
        self._stages: dict[Hashable, Stage] = {}
        self._chain = (prefix_ops or self.make_ops)()
        self._making, self._observing, self._chained = threading.RLock(), threading.Lock(), InOrder(device)
        self._locks: dict[Hashable, threading.Lock] = {}
        self.groups = Groups(self, groups) if groups > 1 else None

    def build(
        self,
        views: Iterable[int],
        prompts: Iterable[int],
        steps: Iterable[int],
        batches: Iterable[int] = (1,),
        progress: Progress = lambda name, done, total: None,
        forms: Iterable[Form] = (Form.FREE,),
        together: int = 1,
    ) -> None:
        """Make and capture stages ahead: for numbers of images, prompt lengths, steps and chunks at once, and
        forms of chunks, in the partition of the current stream. together: most frames in one forward; stages
        are made for 1, 2, 4, ... of them.

        It uses a free slot of the pool meanwhile: raises PoolExhausted if there is none.
        """
        config = self.model.config
        buckets = sorted({self.bucket(length) for length in prompts})
        made: list[tuple[str, Callable[[], object]]] = []
        device = self.pool.k.device
        with self.pool.holding(1) as (slot,):
            for count in sorted(set(views)):
                images = np.zeros((count, config.vision.image_size, config.vision.image_size, 3), np.uint8)
                for bucket, frames in product(buckets, powers_of_two(together + 1)):
                    prompt = torch.zeros(bucket, dtype=torch.int64)
                    prefixes = "prefix" if frames == 1 else f"{frames} prefixes"
                    name = f"{prefixes} of {count} images and {bucket} words"
                    made.append((name, partial(self._build_prefix, images, prompt, slot, frames)))
            for number in sorted(set(steps)):
                for batch in sorted(set(batches)):
                    noise = torch.zeros(batch, config.horizon, config.action_dim, device=device)
                    state = torch.zeros(batch, config.state_dim, device=device)
                    given = noise, state, [slot] * batch, [1] * batch, number
                    for form in sorted(set(forms)):
                        name = f"{number} denoising steps of {batch} {CHUNKS[form]}"
                        guides = [_example(form, noise[0].cpu())] * batch
                        made.append((name, partial(self.act, *given, guides)))
            for done, (name, make) in enumerate(made):
                progress(name, done, len(made))
                make()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def bucket(self, prompt: int) -> int:
        """The prompt length of the stage for a prompt."""
        return min(-(-max(prompt, 1) // BUCKET) * BUCKET, max(self.model.config.max_prompt, prompt))

    @torch.inference_mode()
    def measure_offload(self, images: int) -> OffloadReport:
        """What streaming weights costs and saves in encoding so many images, with the images that were
        encoded last."""
        encode = self.encode(images)
        with self.prefixing():
            report = measure(encode, [self.tower])
            encode.upload.read()
        return report

    @torch.inference_mode()
    def observe(
        self,
        frames: Sequence[Images],
        prompts: Sequence[Tensor] | Callable[[], Sequence[Tensor]],
        slots: Sequence[int],
        taken: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """Write prefixes into pool slots; returns their lengths.

        frames: V images each, the same V for all. prompts: int64 [t] each, or a function that returns them,
        called while the images are encoded. slots: one for each. taken: called once the images are not needed
        any longer; an exception ends the call. Only the reading of the images is waited for; the rest is
        ordered by the current stream.
        """
        batch, views = len(frames), len(frames[0])
        encode = self.encode(batch * views)
        with self.prefixing():
            encode.upload.begin([image for frame in frames for image in frame])
            self.replay(encode, self.partition())
            encode.upload.read()
            try:
                prompts = prompts() if callable(prompts) else prompts
            finally:  # the images may be overwritten after this, even after an error
                encode.upload.end()
            taken()
            prefill = self.prefill(views, max(len(prompt) for prompt in prompts), batch)
            tokens = views * self.model.config.vision.tokens
            for slot, seen in zip(slots, encode.tokens.split(tokens), strict=True):
                self.images[slot, :tokens].copy_(seen)
            prefill.set(prompts, slots)
            self.replay(prefill, self.partition())
        return [tokens + len(prompt) for prompt in prompts]

    @torch.inference_mode()
    def reword(self, source: int, tokens: int, prompt: Tensor, slot: int) -> int:
        """Write the prefix of a slot's images (`tokens` tokens) and another prompt into another slot.

        Returns its length. The images are not encoded again: their tokens are kept.
        """
        views = tokens // self.model.config.vision.tokens
        encode, prefill = self.encode(views), self.prefill(views, len(prompt))
        with self.prefixing():
            encode.tokens.copy_(self.images[source, :tokens])
            self.images[slot, :tokens].copy_(encode.tokens)
            prefill.set([prompt], [slot])
            self.replay(prefill, self.partition())
        return tokens + len(prompt)

    @torch.inference_mode()
    def act(
        self,
        noise: Tensor,
        state: Tensor | None,
        slots: Sequence[int],
        lengths: Sequence[int],
        steps: int,
        guides: Guides | None = None,
        joints: Sequence[int] | None = None,
    ) -> Flow:
        """Sample a chunk from each of some prefixes; the result is on the device.

        noise float32 [B, H, A]; state float32 [B, S], for pi0; slots, lengths: of the prefixes, B each;
        guides: what each chunk must agree with, None = all are free. joints: of each chunk, see Denoise.
        """
        with self._denoised(noise, state, slots, lengths, steps, guides, joints) as stage:
            return Flow(stage.x.clone(), stage.update.clone())

    @torch.inference_mode()
    def submit(
        self,
        noise: Tensor,
        state: Tensor | None,
        slots: Sequence[int],
        lengths: Sequence[int],
        steps: int,
        guides: Guides | None = None,
        joints: Sequence[int] | None = None,
    ) -> Pending:
        """Like `act`, but the chunks are copied to the host. Once the stage is captured this blocks on
        nothing and allocates nothing on the device; inputs may be on the host, in pageable memory."""
        with self._denoised(noise, state, slots, lengths, steps, guides, joints) as stage:
            return stage.pending()

    @contextmanager
    def _denoised(
        self,
        noise: Tensor,
        state: Tensor | None,
        slots: Sequence[int],
        lengths: Sequence[int],
        steps: int,
        guides: Guides | None,
        joints: Sequence[int] | None,
    ) -> Iterator[Denoise]:
        """The denoising stage, run on these chunks."""
        stage = self.denoise(len(slots), steps)
        with self._locks["denoise", len(slots), steps], stage.call():
            stage.set(noise, state if stage.alone else None, slots, lengths, guides, joints)
            self.replay(stage, self.partition())
            yield stage

    @torch.inference_mode()
    def last_hidden(self, slot: int, length: int) -> Tensor:
        """The hidden state [W] of a prefix's last token after the final norm, from which text begins."""

        def make() -> Finish:
            own = self.model, self.prefix, self.pool, self.tables, self.carry, self.make_ops()
            return finish_stage(self.int8, *own)

        stage = self._stage(("finish",), make)
        with self._locks["finish",]:
            stage.set(slot, length)
            self.replay(stage, self.partition())
            return stage.hidden[0, 0].clone()

    def encode(self, images: int) -> Encode:
        """The stage for so many images."""

        def make() -> Encode:
            own = self.model, self._chain, images, self.rule, self.tower
            return encode_stage(self.small, self.int8, *own)

        return self._stage(("encode", images), make)

    def prefill(self, views: int, prompt: int, batch: int = 1) -> Prefill:
        """The stage for `batch` frames with so many images each and the longest prompt."""
        encode, bucket = self.encode(batch * views), self.bucket(prompt)

        def make() -> Prefill:
            own = self.model, self.prefix, self.pool, self.tables, self.carry, self._chain, self._memory
            return prefill_stage(self.small, self.int8, *own, encode, bucket, batch)

        return self._stage(("prefill", views, bucket, batch), make)

    def denoise(self, batch: int, steps: int) -> Denoise:
        """The stage for so many chunks and steps."""

        def make() -> Denoise:
            if steps not in self._experts:
                other = next(iter(self._experts.values()), None)
                self._experts[steps] = fold_expert(self.model, steps, self.time_rule, other)
            own = self.model, self._experts[steps], self.pool, self.tables, self.make_ops(), batch
            further = partial(self.clean, steps), self.time_rule, self.joints, self.solver
            return denoise_stage(self.small, self.int8, *own, *further)

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

    def _build_prefix(self, images: np.ndarray, prompt: Tensor, slot: int, frames: int = 1) -> None:
        self.observe([images] * frames, [prompt] * frames, [slot] * frames)
        if self.groups is not None:
            self.groups.build(images, prompt, slot)

    def clean(self, steps: int) -> Expert:
        """The expert for so many steps, which exists already, with an added row for flow time 0."""
        with self._making:
            if steps not in self._clean:
                self._clean[steps] = with_clean_step(self.model, self._experts[steps], self.time_rule)
            return self._clean[steps]

    def _stage(self, key: Hashable, make: Callable[[], S]) -> S:
        with self._making:
            if key not in self._stages:
                self._locks[key] = threading.Lock()
                self._stages[key] = make()
            return self._stages[key]  # type: ignore[return-value]


def _example(form: Form, actions: Tensor) -> Inpainting | None:
    """An inpainting that gives a chunk of actions [H, A] that form."""
    if form is Form.FREE:
        return None
    return Inpainting(actions, torch.zeros(len(actions)), committed=int(form is Form.COMMITTED))
