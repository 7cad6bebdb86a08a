"""Packed forwards of a decoder stack as captured stages: one graph for every shape of segments.

They take the same segments as models.layers.packed.forward, with the same results but for rounding. A graph
is made for a shape: long segments (a prompt, a draft behind it) are padded to a multiple of 16 rows, which
changes nothing in a causal segment. Single rows (riders, answers) are padded to a power of two with rows that
attend to nothing and write nowhere. A table of the memory to read and write is updated before each replay.
Products use cuBLAS, which is near its limit from a few dozen rows on; the rest is two passes over the rows
and two attention launches per layer. Forwards of few rows may have quantised weights
(engine.stages.precision), and all forwards int8 rows. Tokens of text go in as ids and come out as the
likeliest next ids, both on the device. Such a forward may be split into groups of layers, each with its own
graph, so that other work runs between two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from torch import Tensor

from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.packed_stage import (
    Kernels,
    PackedInt8,
    PackedStage,
    Words,
    fuse_stack,
    kernels_for,
)
from vla_accel_ros.engine.stages.precision import SmallLayer
from vla_accel_ros.kernels.work import NOWHERE, Rows, Shape, Where, Work, aligned, where
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.layers.few_bits import given
from vla_accel_ros.models.layers.gemma import Gemma, rotary_tables
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.packed import Part, Segment, Span, sees
from vla_accel_ros.models.pi.folded import FoldedLayer

ROUND = 16
"""Rows of a causal segment are padded to a multiple of this."""

FULL = 2
"""Blocks per multiprocessor from which keys are not split."""

MOST_SPLITS = 16

FEW_ROWS = 32
"""Up to this many rows a forward is bound by reading weights, and may have quantised ones."""

PARTS = 4
"""Parts of a segment's past that every graph has room for; longer tails need another graph."""


class NextWords(NamedTuple):
    """Results of a forward of tokens, valid until the next one: hidden [1, 1, W] of each after the final
    norm, the likeliest next ids int64 [tokens], and the logits [tokens, vocab]."""

    hidden: list[Tensor]
    likeliest: Tensor
    scores: Tensor


class PackedForward:
    """A `models.layers.packed.Forward` of one stack. Not safe for several threads at once.

    positions: number of positions that rows may have. capture: False computes without graphs, launch by
    launch.
    weights: the kind of models.layers.quantized that forwards of few rows have, None = all are exact; if the
    stack has no exact weights (models.layers.few_bits), all forwards use this kind.
    int8: weights of the stack for all forwards, with int8 rows; None = see weights.
    words: embedding and language head, for tokens of text; None = no text.
    last: the stage of the last call. partition: returns at each call the partition and the stream on which
    its stage is captured, see Stage; none unless set.

    A stage is made and captured when its shape first occurs: call once with each shape before time counts.
    """

    def __init__(
        self,
        stack: Gemma | Llama,
        sizes: GemmaConfig,
        positions: int = 4096,
        kernels: Kernels | None = None,
        capture: bool = True,
        block_m: int = 32,
        weights: str | None = None,
        int8: Int8 | None = None,
        words: Words | None = None,
    ) -> None:
        self.stack = self.few = fuse_stack(stack, sizes)
        if weights is not None:
            exact = cast("tuple[FoldedLayer, ...]", self.stack.layers)
            smalls = list(map(given, stack.layers))
            small = tuple(
                SmallLayer.of(layer, weights, made=part) for layer, part in zip(exact, smalls, strict=True)
            )
            self.few = replace(self.stack, layers=small)
            if all(smalls):  # the exact ones were freed
                self.stack = self.few
        self._kind = PackedStage if int8 is None else PackedInt8
        if int8 is not None:
            exact = cast("tuple[FoldedLayer, ...]", self.stack.layers)
            self.stack = self.few = replace(self.stack, layers=int8.prefix(exact, stack))
        device = self.stack.factors.device
        places = torch.arange(positions + ROUND, device=device)[None]  # padding rows need a position, too
        cos, sin = rotary_tables(places, sizes.head_dim, torch.float32)
        half = sizes.head_dim // 2
        self._tables = cos[0, 0, :, :half].contiguous(), sin[0, 0, :, :half].contiguous()
        self._kernels = kernels_for(device) if kernels is None else kernels
        self._capture, self._block_m, self._positions, self._words = capture, block_m, positions, words
        self._stages: dict[Hashable, PackedStage] = {}
        self._recording = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.partition: Callable[[], tuple[Hashable, torch.cuda.Stream | None]] = lambda: (None, None)
        self.last: PackedStage | None = None

    @property
    def stages(self) -> tuple[PackedStage, ...]:
        """The stages so far, one for each shape, in order of creation."""
        return tuple(self._stages.values())

    @property
    def copied_bytes(self) -> int:
        """Bytes of quantised copies of weights, without those of int8, which other stages may share."""
        return sum(layer.nbytes for layer in self.few.layers if isinstance(layer, SmallLayer))

    @staticmethod
    def distinct(rows: Iterable[int]) -> list[int]:
        """The largest number of rows for each stage that causal segments with these numbers of rows need."""
        return sorted({-(-count // ROUND): count for count in sorted(rows)}.values())

    @torch.inference_mode()
    def __call__(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Returns the hidden states of each segment, valid until the next call.

        Raises ValueError for conditions, rows beyond `positions`, and memory that a kernel cannot read.
        """
        if not segments:
            return []
        stage, results = self._begin(segments)
        if self._capture:
            stage.capture(self._stream(stage))
        stage.run()
        self.last = stage
        return results

    @torch.inference_mode()
    def next_words(
        self, ids: Sequence[Tensor], segments: Sequence[Segment], layers: Sequence[int]
    ) -> Iterator[NextWords | None]:
        """Compute a token of several answers, in groups of so many layers each. Each step of the iterator
        computes one group and yields None, or the results after the last. Compute no other forward of the
        same shape in between.

        ids: int64 [] each, on the device; the segments' x is ignored. The embedding belongs to the first
        group, the language head to the last. Raises as a call does, before the first group.
        """
        assert self._words is not None, "this forward was made without words"
        stage, hidden = self._begin(segments, ids)
        for is_last in self._by_group(stage, layers):
            count = len(ids)
            yield NextWords(hidden, stage.likeliest[:count], stage.scores[:count]) if is_last else None

    def _by_group(self, stage: PackedStage, layers: Sequence[int]) -> Iterator[bool]:
        """Compute one group in each step; yields whether it was the last."""
        ends = list(accumulate(layers))
        groups = list(zip([0, *ends[:-1]], ends, strict=True))
        stream = self._stream(stage) if self._capture else None
        for group in groups if self._capture else ():  # capture all before computing one, see Layered
            with stage.only(group):
                stage.capture(stream)
        partition = stage.partition
        for group in groups:
            stage.partition = partition
            with stage.only(group):
                stage.run()
            self.last = stage
            yield group == groups[-1]

    def _stream(self, stage: PackedStage) -> torch.cuda.Stream | None:
        """Set the stage's partition to the present one; returns the stream on which to record its graphs."""
        stage.partition, stream = self.partition()
        return stream or self._recording

    def _begin(
        self, segments: Sequence[Segment], ids: Sequence[Tensor] | None = None
    ) -> tuple[PackedStage, list[Tensor]]:
        """Returns the stage for these segments, with its inputs set, and the place of each segment's results.
        ids: of tokens, instead of the segments' x."""
        order = sorted(range(len(segments)), key=lambda index: segments[index].x.shape[1] == 1)
        long = [segment for segment in segments if segment.x.shape[1] > 1]
        single = [segment for segment in segments if segment.x.shape[1] == 1]
        all_rows = [self._rows(segment) for segment in (*long, *single)]
        words = None if ids is None else self._words
        stage = self._stage(long, len(single), sum(len(segment.past) for segment in all_rows), words)
        if ids is None:
            self._fill(stage, long, single)
        else:
            torch.stack([*ids], out=stage.ids[: len(ids)])
        stage.work.point(all_rows)
        starts = dict(zip(order, stage.work.starts, strict=False))
        ends = [starts[index] + segment.x.shape[1] for index, segment in enumerate(segments)]
        return stage, [stage.hidden[None, starts[index] : end] for index, end in enumerate(ends)]

    def _rows(self, segment: Segment) -> Rows:
        last = segment.first + segment.x.shape[1]
        if segment.condition is not None:
            raise ValueError("a segment has a condition: packed forwards have no modulated norms")
        if last > self._positions:
            raise ValueError(f"a row has position {last - 1}, but there are {self._positions}: give more")
        places = [self._where(part) for part in segment.past]
        out = NOWHERE if segment.out is None else self._where(segment.out)
        return Rows(segment.past, places, segment.first, out, segment.out)

    def _where(self, part: Part) -> Where:
        span, memory = _span(part) if isinstance(part, Span) else where(part), part[0]
        if memory.dtype != self.stack.dtype or memory.device != self.stack.factors.device:
            raise ValueError(
                f"keys are {memory.dtype} on {memory.device}, but the stack is {self.stack.dtype} on "
                f"{self.stack.factors.device}: make the pool like the stack"
            )
        return aligned(span) if memory.is_cuda else span

    def _stage(
        self, long: Sequence[Segment], single: int, parts: int, words: Words | None = None
    ) -> PackedStage:
        padded = [(_padded(segment), segment.causal, segment.alone) for segment in long]
        padded += [(1, False, 0)] * _power_of_two(single)
        room = max(parts, PARTS * len(padded))
        key = (tuple(padded), _power_of_two(room), words is None)
        if key not in self._stages:
            sizes, device = self.stack.sizes, self.stack.factors.device
            groups = sizes.heads // sizes.kv_heads
            shapes = [Shape(rows, tuple(sees(rows, causal, alone))) for rows, causal, alone in padded]
            block_m = self._block_m if long else 16
            tiles = sum(-(-shape.rows * groups // block_m) for shape in shapes)
            splits = _splits(tiles * sizes.kv_heads, device)
            work = Work(shapes, key[1], groups, device, block_m, splits)
            stack = self.few if work.rows <= FEW_ROWS else self.stack
            self._stages[key] = self._kind(stack, self._tables, self._kernels, work, words)
        return self._stages[key]

    def _fill(self, stage: PackedStage, long: Sequence[Segment], single: Sequence[Segment]) -> None:
        for segment, start in zip(long, stage.work.starts, strict=False):
            stage.x[start : start + segment.x.shape[1]].copy_(segment.x[0])
        if single:
            first = stage.work.starts[len(long)]
            rows = torch.cat([segment.x[0] for segment in single])
            stage.x[first : first + len(single)].copy_(rows)


def _span(span: Span) -> Where:
    """Same as kernels.work.where, without slicing tensors."""
    sequence, layer, head, token, _ = span.keys.stride()
    shift = (span.place * sequence + span.start * token) * span.keys.itemsize
    return Where(
        span.keys.data_ptr() + shift,
        span.values.data_ptr() + shift,
        layer,
        head,
        token,
        span.end - span.start,
    )


def _padded(segment: Segment) -> int:
    """Number of rows after padding. Only causal segments are padded: other segments would attend to the
    padding."""
    count = segment.x.shape[1]
    return -(-count // ROUND) * ROUND if segment.causal else count


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0


def _splits(blocks: int, device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    tiles = FULL * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(MOST_SPLITS, tiles // blocks))
