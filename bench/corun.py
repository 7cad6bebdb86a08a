"""Requests of agents on one GPU: encode, prefill and decode at Poisson rates, under the schedulers of Nova.

    python bench/corun.py [--policies fifo prefill_first chunked two_streams static adaptive]
        [--loads 0.4 0.6 0.8] [--seconds S] [--at-once N] [--splits SMS ...] [--slots N] [--chunk TOKENS]
        [--seed N] [--robot]

An agent looks at a screen (OBSERVE: encode, prefill) and answers with a command (ASK: decode). The model has
the sizes of CogAgent-9B and random weights. Encode and prefill are bound by arithmetic and run one at a time;
a decode step is bound by reading weights and takes all open answers at once. With one lane a rule decides
which of them waits; with two, answers are decoded beside screens, and the multiprocessors may be divided
between them (Nova, arXiv 2509.21301): `static` by the best of all measured splits (equation 3), `adaptive` by
the number of waiting screens (equation 5).

Arrivals are open-loop, and the same for every scheduler. A load is the arrival rate divided by the highest
rate that encode and prefill alone could serve; for fifo, by the highest rate of whole requests. --at-once N:
afterwards N requests come at once, which gives the highest request rate. --robot: a robot's pi0 acts on 30
frames a second meanwhile, on another engine whose lanes have priority.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grids.sizes import small
from run import Bench, Given, Row, main
from shared.policies import random_policy
from shared.subjects import random_observation
from shared.timing import by_events, summary
from vla_accel_ros.engine.config import ACTIONS_APART, Split
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.lanes.partitions import divide
from vla_accel_ros.engine.request import (
    ASK,
    DECODE,
    ENCODE,
    OBSERVE,
    PREFILL,
    Ask,
    MicroBatch,
    Observe,
    Request,
    Requests,
    Status,
    Waits,
    by_priority,
)
from vla_accel_ros.engine.rules.partition import sms_of_actions
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.scheduler import QueueFull, Scheduler
from vla_accel_ros.engine.stages.stage import no_collection
from vla_accel_ros.models.config import PI0, GemmaConfig
from vla_accel_ros.types import Observation

VISION, LANGUAGE = "vision", "language"
ONE, TWO = ("main",), (VISION, LANGUAGE)
FIFO, PREFILL_FIRST, CHUNKED = "fifo", "prefill_first", "chunked"
TWO_STREAMS, STATIC, ADAPTIVE = "two_streams", "static", "adaptive"
LANES: Mapping[str, tuple[str, ...]] = {
    FIFO: ONE, PREFILL_FIRST: ONE, CHUNKED: ONE, TWO_STREAMS: TWO, STATIC: TWO, ADAPTIVE: TWO
}  # fmt: skip
SPLITS, SLOTS, CHUNK = (8, 16, 24, 32, 48), 16, 256
BATCHES = (1, 2, 4, 8, 16, 32)
LIMIT = 5
"""Open answers that let no screen go first (Nova's)."""
SURGE = 4
"""Screens at which `adaptive` leaves decoding the least."""
TOKENS, SMALL_TOKENS = (30, 80), (3, 8)
"""Of an answer: Android instructions, as Nova has them."""
SMALL_FRONT_S = 0.1
"""Of the tiny model's arrivals: its stages take less time than their scheduling."""
MOST, AT_ONCE, PATIENCE_S = 4096, 256, 20.0
"""Arrivals drawn for a run; most unfinished requests in an engine; time for the last answers of a run."""
SCREENS = 3
"""Number of different screens."""
RUNS, BESIDE_BATCH = 4, 4
"""Timed runs of a stage; answers in the steps that are timed beside encode and prefill."""
WARM_S = 4.0
"""A GPU computes before anything is timed: idle ones took 12 % less for encode."""
ROBOT_HZ, ROBOT_VIEWS, ROBOT_PROMPT = 30.0, 2, 20
Stage = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    """Of a model of agents. image: pixels of a screen's side; words: tokens of a prompt beside the screen's;
    answer: most tokens of one. The defaults are CogAgent-9B's (GLM-4V-9B)."""

    language: GemmaConfig = field(default_factory=lambda: GemmaConfig(4096, 40, 13696, 32, 2, 128))
    width: int = 1792
    depth: int = 63
    mlp: int = 15360
    heads: int = 16
    image: int = 1120
    patch: int = 14
    vocab: int = 151552
    words: int = 100
    answer: int = 80

    @property
    def prompt(self) -> int:
        """Tokens: one for each 2 x 2 patches of a screen, and the words."""
        return (self.image // self.patch // 2) ** 2 + self.words


TINY = Sizes(GemmaConfig(32, 2, 48, 4, 2, 8), 16, 2, 32, 2, image=56, vocab=64, words=5, answer=12)
"""To try things on a CPU."""


class AgentModel:
    """Random weights as plain functions whose tensors stay in place. Class token, biases and learned
    positions are left out: they take hardly any time."""

    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.sizes, self.device, self.dtype, self.count = sizes, device, dtype, 0
        generator = torch.Generator(device).manual_seed(seed)
        g, width, mlp = sizes.language, sizes.width, sizes.mlp

        def weight(rows: int, columns: int) -> Tensor:
            self.count += rows * columns
            empty = torch.empty(rows, columns, device=device, dtype=dtype)
            return empty.normal_(0.0, columns**-0.5, generator=generator)

        def weights(*shapes: tuple[int, int]) -> tuple[Tensor, ...]:
            return tuple(weight(*shape) for shape in shapes)

        self.patches = weight(width, 3 * sizes.patch**2)
        layer = (3 * width, width), (width, width), (mlp, width), (width, mlp)
        self.vision = [weights(*layer) for _ in range(sizes.depth)]
        merge, project = (g.width, 4 * width), (g.width, g.width)
        gated = (2 * g.mlp, g.width), (g.width, g.mlp)
        self.adapter = weights(merge, project, *gated)
        rows = (g.heads + 2 * g.kv_heads) * g.head_dim
        attention = (rows, g.width), (g.width, g.heads * g.head_dim)
        self.layers = [weights(*attention, *gated) for _ in range(g.depth)]
        self.embedding, self.head = weights(*2 * [(sizes.vocab, g.width)])
        half = torch.arange(0, g.head_dim, 2, device=device, dtype=torch.float32)
        self.frequencies = 10000.0 ** (-half / g.head_dim)

    def encode(self, pixels: Tensor) -> Tensor:
        """uint8 [image, image, 3] -> [tokens of a screen, language width]."""
        sizes = self.sizes
        patch, side, heads = sizes.patch, sizes.image // sizes.patch, sizes.heads
        scaled = pixels.to(self.dtype) / 127.5 - 1.0
        cut = scaled.view(side, patch, side, patch, 3).permute(0, 2, 4, 1, 3).reshape(side * side, -1)
        hidden = F.linear(cut, self.patches)
        for qkv, out, up, down in self.vision:
            parts = F.linear(hidden, qkv).view(-1, 3, heads, sizes.width // heads)
            query, key, value = parts.permute(1, 2, 0, 3)[:, None]
            attended = F.scaled_dot_product_attention(query, key, value)[0].transpose(0, 1).flatten(1)
            hidden = hidden + _normed(F.linear(attended, out))
            hidden = hidden + _normed(F.linear(F.gelu(F.linear(hidden, up)), down))
        half = side // 2
        four = hidden.view(half, 2, half, 2, -1).permute(0, 2, 1, 3, 4).reshape(half * half, -1)
        merge, project, *gated = self.adapter
        return _gated(F.gelu(_normed(F.linear(F.linear(four, merge), project))), *gated)

    def forward(
        self,
        hidden: Tensor,
        slots: Tensor,
        positions: Tensor,
        pool: KVPool,
        attend: Callable[[int, Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Rows [n, width] through the language model, keys and values written to the pool.

        slots, positions: int64 [n], where in the pool each row is. attend: layer and q, k, v [n, heads,
        head_dim] of the rows -> [n, heads * head_dim].
        """
        g = self.sizes.language
        index = (slots[:, None], torch.arange(g.kv_heads, device=slots.device)[None], positions[:, None])
        angles = positions[:, None, None].float() * self.frequencies
        cos, sin = (torch.cat([half, half], -1).to(self.dtype) for half in (angles.cos(), angles.sin()))
        for number, (qkv, out, *gated) in enumerate(self.layers):
            rows = F.linear(_scaled(hidden), qkv).view(len(hidden), -1, g.head_dim)
            turned, value = rows.split([g.heads + g.kv_heads, g.kv_heads], 1)
            first, second = turned.chunk(2, -1)
            rotated = torch.addcmul(turned * cos, torch.cat([-second, first], -1), sin)
            query, key = rotated.split([g.heads, g.kv_heads], 1)
            pool.k[:, number].index_put_(index, key)
            pool.v[:, number].index_put_(index, value)
            hidden = hidden + F.linear(attend(number, query, key, value), out)
            hidden = hidden + _gated(_scaled(hidden), *gated)
        return _scaled(hidden)

    def next_token(self, hidden: Tensor) -> Tensor:
        """The most likely token: [n, width] -> int64 [n]."""
        return F.linear(hidden, self.head).argmax(-1)


def _normed(hidden: Tensor) -> Tensor:
    return F.layer_norm(hidden, hidden.shape[-1:])


def _scaled(hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], eps=1e-5)


def _gated(hidden: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(hidden, gate_up).chunk(2, -1)
    return F.linear(F.silu(gate) * up, down)


def attend_whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of a whole prompt [n, heads, head_dim] -> [n, heads * head_dim]."""
    q, k, v = (rows.transpose(0, 1)[None] for rows in (query, key, value))
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1).flatten(1)


def attend_rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """A row of each of n slots. query [n, heads, head_dim]; key, value [n, kv_heads, tokens, head_dim]; mask
    [n, tokens], added -> [n, heads * head_dim]. Heads that share keys are the rows of one attention."""
    rows = query.view(len(query), key.shape[1], -1, query.shape[-1])
    wide = mask[:, None, None].expand(-1, key.shape[1], rows.shape[2], -1)
    return F.scaled_dot_product_attention(rows, key, value, attn_mask=wide).reshape(len(query), -1)


def attend_chunk(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """n rows of one slot. query [n, heads, head_dim]; key, value [kv_heads, tokens, head_dim]; mask [n,
    tokens], added -> [n, heads * head_dim]."""
    count, shared = len(query), len(key)
    rows = query.view(count, shared, -1, query.shape[-1]).permute(1, 2, 0, 3)
    k, v = (part[:, None].expand(-1, rows.shape[1], -1, -1) for part in (key, value))
    attended = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask[None, None])
    return attended.permute(2, 0, 1, 3).reshape(count, -1)


class Captured:
    """Stages as CUDA graphs, for each split of the GPU and each batch; without capture on a CPU.

    A graph that is captured on a stream of a partition keeps its multiprocessors wherever it is replayed. The
    answers of a step are the slots from 0 on: the batch is the smallest one that includes the last open slot,
    and slots without an answer write their row to a place that nobody reads. Two lanes may call it at once,
    one of them to decode. splits: multiprocessors that decoding has, rounded up to a division of the GPU.
    Raises ValueError for a pool of more slots than the largest batch.
    """

    def __init__(
        self, model: AgentModel, slots: int = SLOTS, splits: Sequence[int] = (), chunk: int = CHUNK
    ) -> None:
        if slots > BATCHES[-1]:
            raise ValueError(f"a pool of {slots} slots was asked for; give at most {BATCHES[-1]}.")
        self.model, self.chunk, self.sizes = model, chunk, model.sizes
        self.batches = (*(batch for batch in BATCHES if batch < slots), slots)
        self.front: dict[int, tuple[Stage, Stage]] = {}
        self.steps: dict[int, dict[int, Stage]] = {}
        self.chunks: dict[int, Stage] = {}
        """By the multiprocessors of decoding, 0 = undivided: encode and prefill, and steps by batch. By
        batch: a chunk of a prompt with a step."""
        with torch.inference_mode():
            self._allocate(slots)
            self._capture(splits)

    @property
    def splits(self) -> tuple[int, ...]:
        """Numbers of multiprocessors that decoding may get of a divided GPU."""
        return tuple(sorted(split for split in self.steps if split))

    def encode(self, slot: int, split: Split | None) -> None:
        with torch.inference_mode():
            self._slot.fill_(slot)
            self._pixels.copy_(self._screens[self.encoded % SCREENS], non_blocking=True)
            self.encoded += 1
            self.front[self._of(split)][0]()

    def prefill(self, slot: int, begin: int, tokens: int, beside: Sequence[int], split: Split | None) -> None:
        """Tokens of a slot's prompt from `begin` on, 0 = all, and the next token of the slots beside. Raises
        ValueError for other chunks than are captured."""
        with torch.inference_mode():
            self._slot.fill_(slot)
            if not tokens:
                self.front[self._of(split)][1]()
                return
            if tokens != self.chunk:
                raise ValueError(f"a chunk of {tokens} tokens was asked for; {self.chunk} are captured.")
            self._begin.fill_(begin)
            self.chunks[self._batch(beside)]()

    def decode(self, slots: Sequence[int], split: Split | None) -> None:
        """The next token of each slot."""
        with torch.inference_mode():
            self.steps[self._of(split)][self._batch(slots)]()

    def launched(self, slots: Sequence[int]) -> Callable[[], list[int]]:
        """Returns what waits for the work of the current stream and returns the slots' tokens."""
        if not slots:
            return self._over(list[int])
        with torch.inference_mode():
            self._host.copy_(self._tokens, non_blocking=True)
        return self._over(lambda: [int(self._host[slot]) for slot in slots])

    def open(self, slot: int, ready: torch.cuda.Event | None) -> int:
        """Begin an answer after the event; returns its first token."""
        with torch.inference_mode():
            if ready is not None:
                torch.cuda.current_stream(self.model.device).wait_event(ready)
            self._tokens[slot : slot + 1].copy_(self._first[slot : slot + 1])
            self._positions[slot].fill_(self.sizes.prompt)
            self._active[slot].fill_(True)
            return int(self._tokens[slot])

    def close(self, slot: int) -> None:
        """End an answer."""
        with torch.inference_mode():
            self._active[slot].fill_(False)

    def _of(self, split: Split | None) -> int:
        return 0 if split is None else max((n for n in self.splits if n <= split.actions), default=0)

    def _batch(self, slots: Sequence[int]) -> int:
        return min(batch for batch in (0, *self.batches) if batch > max(slots, default=-1))

    def _over(self, read: Callable[[], list[int]]) -> Callable[[], list[int]]:
        if self.model.device.type != "cuda":
            return read
        event = torch.cuda.current_stream(self.model.device).record_event()

        def wait() -> list[int]:
            event.synchronize()
            return read()

        return wait

    def _allocate(self, slots: int) -> None:
        device, sizes = self.model.device, self.sizes
        padded = -(-sizes.prompt // self.chunk) * self.chunk
        tokens = max(sizes.prompt + sizes.answer, padded) + 1
        self.pool = KVPool(sizes.language, slots, -(-tokens // 64) * 64, device, self.model.dtype)
        generator = torch.Generator().manual_seed(0)
        shape = (SCREENS, sizes.image, sizes.image, 3)
        screens = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        self._screens, self.encoded = screens.pin_memory() if device.type == "cuda" else screens, 0
        self._pixels = torch.zeros(shape[1:], dtype=torch.uint8, device=device)
        self._words = torch.randint(0, sizes.vocab, (sizes.words,), generator=generator).to(device)
        counts = (slots, slots, slots, 1, 1)
        self._tokens, self._first, self._positions, self._slot, self._begin = (
            torch.zeros(count, dtype=torch.int64, device=device) for count in counts
        )
        self._active = torch.zeros(slots, dtype=torch.bool, device=device)
        self._host = torch.zeros(slots, dtype=torch.int64, pin_memory=device.type == "cuda")
        width = sizes.language.width
        self._prompts = torch.zeros(slots, padded, width, device=device, dtype=self.model.dtype)
        self._places = torch.arange(self.pool.k.shape[-2], device=device)

    def _encode(self) -> None:
        prompt = torch.cat([self.model.encode(self._pixels), self.model.embedding[self._words]])
        self._prompts[:, : self.sizes.prompt].index_copy_(0, self._slot, prompt[None])

    def _prefill(self) -> None:
        count = self.sizes.prompt
        rows = self._prompts.index_select(0, self._slot)[0, :count]
        slots, positions = self._slot.expand(count), self._places[:count]
        hidden = self.model.forward(rows, slots, positions, self.pool, lambda layer, *qkv: attend_whole(*qkv))
        self._first.index_copy_(0, self._slot, self.model.next_token(hidden[-1:]))

    def _step(self, chunk: bool, batch: int) -> None:
        """A chunk of the prompt in `_slot` if wanted, and a token for each of the first `batch` slots."""
        head = self.chunk if chunk else 0
        active, nowhere = self._active[:batch], len(self._places) - 1
        positions = torch.where(active, self._positions[:batch], nowhere)
        rows, slots = self.model.embedding[self._tokens[:batch]], self._places[:batch]
        if chunk:
            within = self._begin + self._places[:head]
            prompt = self._prompts.index_select(0, self._slot)[0].index_select(0, within)
            rows, slots = torch.cat([prompt, rows]), torch.cat([self._slot.expand(head), slots])
            positions = torch.cat([within, positions])
        mask = torch.zeros(len(positions), len(self._places), device=positions.device, dtype=rows.dtype)
        mask.masked_fill_(self._places[None] > positions[:, None], float("-inf"))

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            k, v = self.pool.k[:, layer], self.pool.v[:, layer]
            parts = []
            if chunk:
                keys, values = (part.index_select(0, self._slot)[0] for part in (k, v))
                parts.append(attend_chunk(query[:head], keys, values, mask[:head]))
            if batch:
                parts.append(attend_rows(query[head:], k[:batch], v[:batch], mask[head:]))
            return torch.cat(parts)

        hidden = self.model.forward(rows, slots, positions, self.pool, attend)
        if batch:
            tokens = self.model.next_token(hidden[head:])
            self._tokens[:batch].copy_(torch.where(active, tokens, self._tokens[:batch]))
            self._positions[:batch].add_(active)
        if chunk:
            last = (self.sizes.prompt - 1) % self.chunk
            self._first.index_copy_(0, self._slot, self.model.next_token(hidden[last : last + 1]))

    def _capture(self, splits: Sequence[int]) -> None:
        device = self.model.device
        cuda = device.type == "cuda"
        streams: dict[int, tuple[Any, Any]] = {0: (None, None)}
        if cuda:
            streams[0] = torch.cuda.Stream(device), torch.cuda.Stream(device)
            for split in splits:
                decoding, other_set = divide(device, split)
                streams[decoding.sms] = decoding.streams[0], other_set.streams[0]
        pools = [torch.cuda.graph_pool_handle() if cuda else None for _ in range(2)]

        def stage(run: Callable[[], None], stream: Any, pool: Any) -> Stage:
            return _captured(run, stream, pool) if cuda else run

        for split, (decoding_stream, other) in streams.items():
            self.front[split] = stage(self._encode, other, pools[0]), stage(self._prefill, other, pools[0])
            self.steps[split] = {
                batch: stage(partial(self._step, False, batch), decoding_stream, pools[1])
                for batch in self.batches
            }
        self.chunks = {
            batch: stage(partial(self._step, True, batch), streams[0][1], pools[0])
            for batch in (0, *self.batches)
        }


def _captured(run: Callable[[], None], stream: torch.cuda.Stream, pool: Any) -> Stage:
    """Capture it as a CUDA graph after a warm-up run, and replay it once, which uploads the graph."""
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    with no_collection(), capture:
        run()
    graph.replay()
    torch.cuda.synchronize()
    replay: Stage = graph.replay
    return replay


@dataclass
class Screen:
    """A slot's request in work. tokens: of the prompt that are prefilled."""

    slot: int
    tokens: int = 0


class AgentRunner:
    """The scheduler's Runner. A screen takes a slot when it begins and keeps it until its answer is finished;
    a request waits for a free slot. steps: by how many answers were open, decode steps so far."""

    def __init__(self, captured: Captured) -> None:
        self.prefixes, self.steps, self._captured = Prefixes(captured.pool), Counter[int](), captured

    def first_stage(self, request: Request) -> str:
        if request.want == OBSERVE:
            return ENCODE
        if request.want == ASK and request.prefix is not None:
            return DECODE
        raise ValueError(f"an agent's request is a screen, or the answer to a prefix, not to {request.want}.")

    def kind(self, request: Request) -> str:
        return request.kind

    def idle(self) -> None:
        """Does nothing."""

    def room(self, request: Request) -> bool:
        return request.want != OBSERVE or self._captured.pool.free > 0

    def begin(self, request: Request) -> None:
        if request.want == OBSERVE:
            request.progress = Screen(self._captured.pool.acquire())
            return
        prefix = cast(Prefix, request.prefix)
        self._answer(request, self._captured.open(prefix.slot, prefix.ready))

    def is_captured(self, batch: MicroBatch) -> bool:
        return True

    def run(self, batch: MicroBatch) -> Callable[[], None]:
        asks = [request for request in batch.requests if request.want == ASK]
        slots, front = [cast(Prefix, request.prefix).slot for request in asks], batch.requests[-1]
        if batch.stage == ENCODE:
            self._captured.encode(front.progress.slot, batch.split)
        elif batch.stage == DECODE:
            self._captured.decode(slots, batch.split)
        else:
            screen = cast(Screen, front.progress)
            self._captured.prefill(screen.slot, screen.tokens, batch.steps, slots, batch.split)
        for request in batch.requests:
            request.status = Status.LAUNCHED
        return partial(self._finish, batch, asks, self._captured.launched(slots))

    def _finish(self, batch: MicroBatch, asks: Sequence[Request], launched: Callable[[], list[int]]) -> None:
        tokens = launched()
        for request in batch.requests:
            if request.launched:
                request.status = Status.RUNNING
        if batch.stage == ENCODE:
            batch.requests[-1].stage = PREFILL
        elif batch.stage == PREFILL:
            self._prefilled(batch.requests[-1], batch.steps)
        if asks:
            self.steps[len(asks)] += 1
        for request, token in zip(asks, tokens, strict=True):
            self._answer(request, token)

    def drop(self, request: Request) -> None:
        if request.want == ASK:
            self._captured.close(cast(Prefix, request.prefix).slot)
        elif request.progress is not None and request.result is None:
            self._captured.pool.release(request.progress.slot)

    def _prefilled(self, request: Request, tokens: int) -> None:
        screen, prompt = cast(Screen, request.progress), self._captured.sizes.prompt
        screen.tokens += tokens or prompt
        if screen.tokens >= prompt:
            nobody: Any = None
            observation = cast(Observation, request.observation)
            prefix = self.prefixes.publish(screen.slot, observation, nobody, prompt, prompt)
            self.prefixes.remove(prefix.robot)  # screens are no stream: none is the newest
            request.finish(prefix)

    def _answer(self, request: Request, token: int) -> None:
        if request.cancelled:
            return
        request.tokens.append(token)
        if len(request.tokens) >= request.ask.max_tokens:
            request.finish("")


class PrefillFirst(Rule):
    """One lane: screens go first; answers are decoded when no screen waits or more than `limit` answers are
    open. With limit 0 each request is finished before the next begins."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        screen, asks = _screen(ready), _asks(ready)
        return _decode(asks) if screen is None or len(asks) > self._limit else screen


class ChunkedPrefill(Rule):
    """One lane: a prompt is prefilled `chunk` tokens at a time, and each forward also decodes a token of
    every open answer (Sarathi-Serve). Decodes nothing while a screen is encoded."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        screen, asks = _screen(ready), _asks(ready)
        if screen is None or screen.stage == ENCODE:
            return screen or _decode(asks)
        return MicroBatch(PREFILL, (*asks, *screen.requests), steps=self._chunk)


@dataclass(frozen=True)
class Share:
    """Multiprocessors of decoding beside a stage (Nova, equation 5). most: while one screen is in work;
    fewer: less for each further screen that waits; least: the lower bound."""

    most: int
    least: int
    fewer: float = 0.0

    def sms(self, screens: int) -> int:
        """The number. screens: in work or waiting, at least 1."""
        return math.floor(sms_of_actions(screens, self.most, self.least, self.fewer))


class SideBySide(Rule):
    """Two lanes, VISION and LANGUAGE: answers are decoded beside encode and prefill.

    shares: of decoding beside each stage; empty: two streams share the whole GPU. The split is chosen when a
    stage begins and holds until that ends, so the two sets never overlap then. Decoding alone has the whole
    GPU; a step that began so runs to its end beside a screen that begins meanwhile. sms: of the GPU.
    """

    def __init__(self, shares: Mapping[str, Share], sms: int = 0) -> None:
        self._shares, self._sms, self._running = shares, sms, False
        self._split: Split | None = None

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        screens = sum(request.want == OBSERVE for request in ready)
        if lane == LANGUAGE:
            batch = _decode(_asks(ready))
            divided = self._running or screens > 0
            return None if batch is None else replace(batch, split=self._split if divided else None)
        screen = _screen(ready)
        self._running = screen is not None
        if screen is None:
            return None
        if self._shares:
            decoding = self._shares[screen.stage].sms(screens)
            self._split = Split(decoding, self._sms - decoding)
        return replace(screen, split=self._split)

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        if batch.requests[-1].want == OBSERVE:
            self._running = False


def _screen(ready: Sequence[Request]) -> MicroBatch | None:
    """Prefill an encoded screen, else encode the oldest of the highest priority."""
    screens = [request for request in ready if request.want == OBSERVE]
    encoded = [request for request in screens if request.stage == PREFILL]
    for request in encoded or by_priority(screens):
        return MicroBatch(request.stage, (request,), steps=0)
    return None


def _asks(ready: Sequence[Request]) -> tuple[Request, ...]:
    return tuple(request for request in ready if request.want == ASK)


def _decode(asks: tuple[Request, ...]) -> MicroBatch | None:
    """A token of every open answer."""
    return MicroBatch(DECODE, asks) if asks else None


@dataclass(frozen=True)
class Beside:
    """Seconds of encode and of prefill beside decoding, and of a decode step beside each of them."""

    encode_s: float
    decode_in_encode_s: float
    prefill_s: float
    decode_in_prefill_s: float


def expected_s(encode: Beside, prefill: Beside, tokens: float) -> float:
    """Time from a screen to the end of its answer without queueing (Nova, equations 1 and 2).

    encode, prefill: measured with the split beside each. tokens: of an answer.
    """
    front_s = encode.encode_s + prefill.prefill_s
    steps_s = encode.encode_s * encode.decode_in_encode_s + prefill.prefill_s * prefill.decode_in_prefill_s
    return front_s + tokens * steps_s / front_s


def best_splits(measured: Mapping[int, Beside], tokens: float) -> tuple[int, int]:
    """The splits beside encode and beside prefill with the least `expected_s` (Nova, equation 3).

    measured: by the number of multiprocessors for decoding.
    """
    pairs = [(encode, prefill) for encode in sorted(measured) for prefill in sorted(measured)]
    return min(pairs, key=lambda pair: expected_s(measured[pair[0]], measured[pair[1]], tokens))


@dataclass(frozen=True)
class Durations:
    """Seconds of stages alone; beside each other by the multiprocessors of decoding, where the GPU is
    divided. sms: of the GPU."""

    encode_s: float
    prefill_s: float
    decode_s: float
    beside: Mapping[int, Beside] = field(default_factory=dict)
    sms: int = 1

    @property
    def front_s(self) -> float:
        """Encode and prefill alone; the highest possible request rate is its inverse."""
        return self.encode_s + self.prefill_s

    def document(self) -> Row:
        """In ms."""
        rows = [{"split": split, **_ms(vars(times))} for split, times in self.beside.items()]
        return {"sms": self.sms, **_ms(vars(self)), "beside": rows}


def _ms(values: Mapping[str, Any]) -> Row:
    return {f"{n[:-2]}_ms": round(1e3 * v, 4) for n, v in values.items() if n.endswith("_s")}


def time_stages(captured: Captured) -> Durations:
    """Times of the stages by GPU events, alone and, in each split, beside each other."""
    device = captured.model.device
    batch = max(batch for batch in captured.batches if batch <= BESIDE_BATCH)
    encode, prefill = captured.front[0]
    warm_until_s = time.monotonic() + (WARM_S if device.type == "cuda" else 0.0)
    with torch.inference_mode():
        encode()
        while time.monotonic() < warm_until_s:
            by_events(encode, device)
        stages = encode, prefill, captured.steps[0][batch]
        encode_s, prefill_s, decode_s = (
            sum(by_events(stage, device) for _ in range(RUNS)) / RUNS for stage in stages
        )
        if device.type != "cuda":
            return Durations(encode_s, prefill_s, decode_s)
        streams = torch.cuda.Stream(device), torch.cuda.Stream(device)
        by_split = {}
        for split in captured.splits:
            step = captured.steps[split][batch]
            times = (
                _beside_s(stage, stage_s, step, decode_s, streams)
                for stage, stage_s in zip(captured.front[split], (encode_s, prefill_s))
            )
            by_split[split] = Beside(*next(times), *next(times))
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return Durations(encode_s, prefill_s, decode_s, by_split, sms)


def _beside_s(
    front: Stage, front_s: float, decode: Stage, decode_s: float, streams: Sequence[torch.cuda.Stream]
) -> tuple[float, float]:
    """Seconds of a run of `front` beside continuous decode steps, and of a step meanwhile."""
    more = 1.7  # steps are queued for this many times the time alone; for more if they end earlier
    while True:
        steps = 2 + round(more * RUNS * front_s / decode_s)
        begin, end, *ends = (torch.cuda.Event(enable_timing=True) for _ in range(2 + steps))
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[1]):
            decode()
            ends[0].record()
        with torch.cuda.stream(streams[0]):
            begin.record()
            for _ in range(RUNS):
                front()
            end.record()
        with torch.cuda.stream(streams[1]):
            for event in ends[1:]:
                decode()
                event.record()
        torch.cuda.synchronize()
        front_ms = begin.elapsed_time(end)
        ends_ms = [begin.elapsed_time(ends[0]) + ends[0].elapsed_time(event) for event in ends]
        if ends_ms[-1] < front_ms:
            more *= 2
            continue
        during = max(1, sum(ended < front_ms for ended in ends_ms) - 1)
        return front_ms / RUNS / 1e3, (ends_ms[during] - ends_ms[0]) / during / 1e3


def make(name: str, durations: Durations, tokens: tuple[int, int], chunk: int) -> Rule:
    """A scheduling rule by its name, with the splits that are best for these durations."""
    if name == CHUNKED:
        return ChunkedPrefill(chunk)
    if LANES[name] == ONE:
        return PrefillFirst(0 if name == FIFO else LIMIT)
    if name == TWO_STREAMS or not durations.beside:
        return SideBySide({})
    largest = dict(zip((ENCODE, PREFILL), best_splits(durations.beside, sum(tokens) / 2), strict=True))
    if name == STATIC:
        shares = {stage: Share(split, split) for stage, split in largest.items()}
    else:
        smallest = min(durations.beside)
        shares = {s: Share(split, smallest, (split - smallest) / (SURGE - 1)) for s, split in largest.items()}
    return SideBySide(shares, durations.sms)


@dataclass(frozen=True)
class Arrival:
    """time_s: since the start of the run. tokens: length of its answer."""

    time_s: float
    tokens: int


def poisson(rate_hz: float, count: int, seed: int, tokens: tuple[int, int] = TOKENS) -> list[Arrival]:
    """Poisson arrivals with uniformly distributed answer lengths; all at once at an infinite rate."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate_hz, count))
    lengths = rng.integers(tokens[0], tokens[1] + 1, count)
    return [Arrival(float(s), int(length)) for s, length in zip(times, lengths, strict=True)]


@dataclass
class Served:
    """One request. Times by the scheduler's clock: its arrival, the beginning and the prefill of its screen,
    its newest token, and the end of its answer; NaN if it did not get there. gap_s: longest time between two
    tokens. lost: the reason."""

    arrival_s: float
    length: int
    begin_s: float = math.nan
    prefill_s: float = math.nan
    token_s: float = math.nan
    end_s: float = math.nan
    gap_s: float = 0.0
    lost: str = ""
    tokens: tuple[int, ...] = ()


class Agents:
    """Submits requests to a scheduler and notes what becomes of them. Requests that a full queue refuses,
    that fail or are cancelled are lost, and say why."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.served: list[Served] = []
        self.idle = threading.Event()
        self._scheduler, self._lock, self._open = scheduler, threading.Lock(), 0

    def submit(self, arrival: Arrival, arrival_s: float) -> Served:
        """Submit a request with this arrival."""
        served = Served(arrival_s, arrival.tokens)
        with self._lock:
            self._open += 1
            self.idle.clear()
        self.served.append(served)
        screen = Observation({}, np.zeros(0, np.float32), "", stamp_ns=0)
        progress = partial(self._see, served)
        self._take(served, Request(Observe(screen), on_progress=progress, waits=Waits.ROOM))
        return served

    def _take(self, served: Served, request: Request) -> bool:
        try:
            self._scheduler.submit(request)
        except QueueFull as error:
            self._end(served, str(error))
            return False
        return True

    def _see(self, served: Served, request: Request) -> None:
        served.begin_s = request.begun_s
        if not request.finished:
            return
        prefix = request.result
        if not isinstance(prefix, Prefix):
            self._end(served, _reason(request))
            return
        served.prefill_s = served.token_s = self._scheduler.clock()
        progress = partial(self._hear, served, prefix)
        ask = Request(Ask(max_tokens=served.length), prefix=prefix, on_progress=progress)
        if not self._take(served, ask):
            prefix.release()

    def _hear(self, served: Served, prefix: Prefix, request: Request) -> None:
        now_s = self._scheduler.clock()
        served.gap_s, served.token_s = max(served.gap_s, now_s - served.token_s), now_s
        if not request.finished:
            return
        prefix.release()
        served.end_s, served.tokens = now_s, tuple(request.tokens)
        self._end(served, _reason(request) if request.result is None else "")

    def _end(self, served: Served, lost: str) -> None:
        served.lost = lost
        with self._lock:
            self._open -= 1
            if not self._open:
                self.idle.set()


def _reason(request: Request) -> str:
    return repr(request.error) if request.error is not None else "it was cancelled"


def serve(
    captured: Captured, name: str, rule: Rule, arrivals: Sequence[Arrival]
) -> tuple[list[Served], Counter[int]]:
    """Submit each request when it arrives, and wait for the last; returns what became of each, and decode
    steps by how many answers were open."""
    device = captured.model.device
    runner = AgentRunner(captured)
    cuda = device.type == "cuda"
    lanes = [
        Lane(lane, partial(torch.cuda.stream, torch.cuda.Stream(device))) if cuda else Lane(lane)
        for lane in LANES[name]
    ]
    kinds = {VISION: (OBSERVE,), LANGUAGE: (ASK,)} if len(lanes) > 1 else {ONE[0]: (OBSERVE, ASK)}
    for lane in lanes:
        lane.kinds = kinds[lane.name]
    scheduler = Scheduler(runner, Rules(rule, lanes=kinds, text=False), lanes=lanes)
    agents = Agents(scheduler)
    scheduler.start()
    try:
        start_s = scheduler.clock()
        for arrival in arrivals:
            arrival_s = start_s + arrival.time_s
            time.sleep(max(0.0, arrival_s - scheduler.clock()))
            agents.submit(arrival, arrival_s)
        agents.idle.wait(PATIENCE_S)
    finally:
        scheduler.stop()
    return agents.served, runner.steps


def figures(requests: Sequence[Served], rate_hz: float, whole: bool) -> Row:
    """Of a run, in seconds. Lost requests are counted and in nothing else. whole: a request is served until
    its answer is whole, not only until its screen is prefilled."""
    answered = [served for served in requests if not served.lost]
    row: Row = {"requests": len(requests), "lost": len(requests) - len(answered)}
    if not answered:
        return row | {"why": requests[0].lost}
    names = ("arrival_s", "begin_s", "prefill_s", "end_s", "length", "gap_s")
    arrival, begin, prefill, end, length, gap = (
        np.array([getattr(served, name) for served in answered]) for name in names
    )
    latency, service = end - arrival, (end if whole else prefill) - begin
    p50, p99 = np.quantile(latency, (0.5, 0.99))
    values = {
        "average_s": latency.mean(), "p50_s": p50, "p99_s": p99, "max_s": latency.max(),
        "requests_s": len(answered) / (end.max() - arrival.min()),
        "first_token_s": (prefill - arrival).mean(),
        "between_tokens_s": ((end - prefill) / np.maximum(1, length - 1)).mean(),
        "longest_gap_s": gap.max(), "service_s": service.mean(),
        "utilisation": rate_hz * service.mean(), "queue_s": (begin - arrival).mean(),
    }  # fmt: skip
    return row | {name: round(float(value), 5) for name, value in values.items()}


class Robot:
    """pi0 at its camera's rate, on another engine whose lanes have priority. A frame that comes while the
    last one is being acted on is dropped. tiny: a small model, for a CPU."""

    def __init__(self, device: torch.device, dtype: torch.dtype, tiny: bool) -> None:
        config = replace(small().staggered_model, kind="pi0", image_names=("left", "right")) if tiny else PI0
        policy = random_policy(config, device, dtype)
        size = (30, 40) if tiny else (480, 640)
        self._frame = random_observation(policy, ROBOT_VIEWS, ROBOT_PROMPT, size)
        self._engine = Engine(policy, fast=not tiny, lanes=ACTIONS_APART)
        self._engine.prepare([ROBOT_VIEWS], [ROBOT_PROMPT])
        self._act()

    @contextmanager
    def acting(self) -> Iterator[Row]:
        """Act 1 / ROBOT_HZ seconds after the last frame while the block runs; then the figures are there."""
        latency_ms, row, stopping = list[float](), Row(), threading.Event()

        def act() -> None:
            due_s, dropped = time.monotonic(), 0
            while not stopping.wait(max(0.0, due_s - time.monotonic())):
                self._act()
                late_s = time.monotonic() - due_s
                latency_ms.append(1e3 * late_s)
                frames = max(1, int(late_s * ROBOT_HZ))
                due_s, dropped = due_s + frames / ROBOT_HZ, dropped + frames - 1
            row.update(frames=len(latency_ms), dropped=dropped, **summary(latency_ms))

        thread = threading.Thread(target=act, name="robot", daemon=True)
        thread.start()
        try:
            yield row
        finally:
            stopping.set()
            thread.join()
        if not row:
            raise RuntimeError("the robot beside the agents failed: its thread's error is above")

    def _act(self) -> None:
        with self._engine.observe(self._frame) as prefix:
            self._engine.act(prefix)


def measure(given: Given) -> Iterator[Row]:
    """Durations, then each load under each scheduler. Raises ValueError for invalid loads or seconds."""
    if not all(load > 0 for load in given.loads) or not given.seconds > 0:
        raise ValueError(f"loads are {given.loads} in {given.seconds} s; give numbers above 0.")
    if not 0 <= given.at_once <= AT_ONCE:
        raise ValueError(f"{given.at_once} requests at once: give 0 to {AT_ONCE}, which a queue takes.")
    chunk, splits = (8, ()) if given.small else (given.chunk, given.splits)
    tokens = SMALL_TOKENS if given.small else TOKENS
    model = AgentModel(TINY if given.small else Sizes(), given.device, given.dtype)
    captured = Captured(model, given.slots, splits, chunk)
    durations = time_stages(captured)
    given.document |= {
        "chunk": chunk, "prompt": model.sizes.prompt, "answers": tokens, "weights": model.count,
        "seeds": f"weights 0, screen 0, arrivals {given.seed}", "durations": durations.document(),
    }  # fmt: skip
    robot = Robot(given.device, given.dtype, given.small) if given.robot else None
    if robot is not None:
        with robot.acting() as row:
            time.sleep(min(given.seconds, 3.0))
        given.document["robot_alone"] = row
    for load in (*given.loads, *((None,) if given.at_once else ())):
        for name in given.policies:
            request_s = durations.front_s
            if name == FIFO:
                request_s += (sum(tokens) / 2 - 1) * durations.decode_s
            rate_hz = (load or 1.0) / (SMALL_FRONT_S if given.small else request_s)
            drawn = poisson(rate_hz, MOST, given.seed, tokens)
            arrivals = [arrival for arrival in drawn if arrival.time_s < given.seconds] or drawn[:1]
            if load is None:
                arrivals = [Arrival(0.0, arrival.tokens) for arrival in drawn[: given.at_once]]
            policy = make(name, durations, tokens, chunk)
            with nullcontext() if robot is None else robot.acting() as robot_row:
                requests, steps = serve(captured, name, policy, arrivals)
            row = {"policy": name, "load": load, "rate_hz": round(rate_hz, 4)}
            row |= figures(requests, rate_hz, whole=name == FIFO)
            row["open"] = round(sum(n * count for n, count in steps.items()) / max(1, steps.total()), 3)
            yield row if robot_row is None else row | {"robot": robot_row}


def options(add: Callable[..., Any]) -> None:
    """Schedulers, loads and the model's graphs."""
    add("--policies", nargs="+", choices=tuple(LANES), default=tuple(LANES))
    add("--loads", nargs="+", type=float, default=(0.4, 0.6, 0.8))
    add("--seconds", type=float, default=10.0, help="of arrivals in each case (default: %(default)s)")
    add("--at-once", type=int, default=0, help="requests that come all at once, after the loads")
    add("--slots", type=int, default=SLOTS, help="requests that have begun, at most (default: %(default)s)")
    add("--splits", nargs="+", type=int, default=SPLITS, help="multiprocessors of decoding to choose from")
    add("--chunk", type=int, default=CHUNK, help="tokens of a chunked prefill (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the arrivals (default: %(default)s)")
    add("--robot", action="store_true", help="beside pi0, 2 views, 30 frames a second, on another engine")


SMOKE = "--small --seconds 0.5 --loads 0.6 --at-once 3 --slots 4 --robot"
BENCH = Bench("corun", measure, options, gpu=True, smoke=SMOKE)

if __name__ == "__main__":
    sys.exit(main(BENCH))
