"""Stages of an agent's model as CUDA graphs: one for each split of the GPU and each batch; without capture on
a CPU.

A graph that is captured on a stream of a partition keeps its multiprocessors wherever it is replayed
(engine.lanes.partitions), and its kernels keep the priority of that stream, so a lane replays any of them on
its own stream. The answers of a decode step are the slots of the pool from 0 on: the batch is the smallest
captured one that includes the last open slot, and slots without an answer write their row to a place that
nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from agents.durations import mode_of
from agents.model import AgentModel, attend_chunk, attend_rows, attend_whole
from agents.rules import SCREENS_FIRST, SHARED
from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.lanes.partitions import divide
from vla_accel_ros.engine.stages.stage import no_collection

BATCHES = (1, 2, 4, 8, 16, 32)
SLOTS = 16
CHUNK = 256
"""Tokens of a prompt in a forward of chunked prefill."""
SCREENS = 3
"""Number of different screens."""
_ROUND = 64

Stage = Callable[[], object]


def room(prompt: int, answer: int, chunk: int) -> int:
    """Tokens that a slot must hold: prompt, answer, padding of the last chunk, and one unused position."""
    most = max(prompt + answer, -(-prompt // chunk) * chunk) + 1
    return -(-most // _ROUND) * _ROUND


class Captured:
    """An agents.runner.Computing. splits: multiprocessors that decoding has, each of which is a division of
    the GPU (rounded up to what it can be divided by). urgent: whether encode and prefill are captured once
    more, on a stream that is more urgent than others. Two lanes may call it at once, one of them to decode.

    screens: uint8 [SCREENS, image, image, 3] on the host; each encode copies the next to the device first.
    encoded: how many were.
    Raises ValueError for a pool of more slots than the largest batch.
    """

    def __init__(
        self,
        model: AgentModel,
        slots: int = SLOTS,
        splits: Sequence[int] = (),
        chunk: int = CHUNK,
        seed: int = 0,
        urgent: bool = True,
    ) -> None:
        if slots > BATCHES[-1]:
            raise ValueError(f"a pool of {slots} slots was asked for; give at most {BATCHES[-1]}.")
        self.model, self.chunk, self.config = model, chunk, model.config
        tokens = room(self.config.prompt, self.config.answer, chunk)
        self.pool = KVPool(self.config.language, slots, tokens, model.device, model.dtype)
        self.batches = (*(batch for batch in BATCHES if batch < slots), slots)
        self._make_state(slots, tokens, seed)
        self._front: dict[int, tuple[Stage, Stage]] = {}
        self._decode: dict[int, dict[int, Stage]] = {}
        self._mixed: dict[int, Stage] = {}
        with torch.inference_mode():
            self._capture(splits, urgent)

    @property
    def modes(self) -> tuple[int, ...]:
        """Modes that can be measured here: SHARED, SCREENS_FIRST if priorities work, and the splits."""
        return tuple(self._front)

    @property
    def splits(self) -> tuple[int, ...]:
        """Numbers of multiprocessors that decoding may get if the GPU is partitioned."""
        return tuple(sorted(split for split in self._decode if split))

    @property
    def answering(self) -> int:
        """Indices of slots with an unfinished answer."""
        return int(self._active.sum())

    def encode(self, slot: int, split: Split | None) -> None:
        with torch.inference_mode():
            self._slot.fill_(slot)
            self._pixels.copy_(self.screens[self.encoded % SCREENS], non_blocking=True)
            self.encoded += 1
            self._front[self._mode(split)][0]()
            self._wait()

    def prefill(
        self, slot: int, begin: int, tokens: int, beside: Sequence[int], split: Split | None
    ) -> list[int]:
        with torch.inference_mode():
            self._slot.fill_(slot)
            if not tokens:
                self._front[self._mode(split)][1]()
                self._wait()
                return []
            if tokens != self.chunk:
                raise ValueError(f"a chunk of {tokens} tokens was asked for; {self.chunk} are captured.")
            self._begin.fill_(begin)
            self._mixed[self._batch(beside)]()
            return self._said(beside)

    def decode(self, slots: Sequence[int], split: Split | None) -> list[int]:
        with torch.inference_mode():
            self._decoding(self._mode(split))[self._batch(slots)]()
            return self._said(slots)

    def open(self, slot: int, ready: torch.cuda.Event | None) -> int:
        with torch.inference_mode():
            if ready is not None:
                torch.cuda.current_stream(self.model.device).wait_event(ready)
            self._tokens[slot : slot + 1].copy_(self._first[slot : slot + 1])
            self._positions[slot].fill_(self.config.prompt)
            self._active[slot].fill_(True)
            return int(self._tokens[slot])

    def close(self, slot: int) -> None:
        with torch.inference_mode():
            self._active[slot].fill_(False)

    def runs(self, mode: int, batch: int) -> tuple[Stage, Stage, Stage, Stage]:
        """Launch functions of encode, prefill, a decode step, and a chunk with a decode step. They do not
        wait."""
        return (*self._front[mode], self._decoding(mode)[batch], self._mixed[batch])

    @property
    def chunk_alone(self) -> Stage:
        """Launch a prefill chunk without a decode step."""
        return self._mixed[0]

    def _mode(self, split: Split | None) -> int:
        mode = mode_of(split, self.splits) if self.splits else SHARED
        return mode if mode in self._front else SHARED

    def _decoding(self, mode: int) -> dict[int, Stage]:
        return self._decode[mode if mode in self._decode else SHARED]

    def _batch(self, slots: Sequence[int]) -> int:
        return min(batch for batch in (0, *self.batches) if batch > max(slots, default=-1))

    def _said(self, slots: Sequence[int]) -> list[int]:
        self._host.copy_(self._tokens, non_blocking=True)
        self._wait()
        return [int(self._host[slot]) for slot in slots]

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()

    def _make_state(self, slots: int, tokens: int, seed: int) -> None:
        device, config, width = self.model.device, self.config, self.config.language.width
        cuda = device.type == "cuda"
        generator = torch.Generator().manual_seed(seed)
        shape = (SCREENS, config.vision.image, config.vision.image, 3)
        screens = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        self.screens, self.encoded = screens.pin_memory() if cuda else screens, 0
        whole = partial(torch.zeros, slots, dtype=torch.int64, device=device)
        self._pixels = torch.zeros(shape[1:], dtype=torch.uint8, device=device)
        self._words = torch.randint(0, config.vocab, (config.words,), generator=generator).to(device)
        self._slot, self._begin = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self._tokens, self._first, self._positions = whole(), whole(), whole()
        self._active = torch.zeros(slots, dtype=torch.bool, device=device)
        self._host = torch.zeros(slots, dtype=torch.int64, pin_memory=cuda)
        padded = -(-config.prompt // self.chunk) * self.chunk
        self._prompts = torch.zeros(slots, padded, width, device=device, dtype=self.model.dtype)
        self._places = torch.arange(tokens, device=device)

    def _encode(self) -> None:
        seen = self.model.encode(self._pixels)
        words = self.model.embedding[self._words]
        self._prompts[:, : self.config.prompt].index_copy_(0, self._slot, torch.cat([seen, words])[None])

    def _prefill(self) -> None:
        count = self.config.prompt
        rows = self._prompts.index_select(0, self._slot)[0, :count]
        slots, positions = self._slot.expand(count), self._places[:count]
        hidden = self.model.forward(rows, slots, positions, self.pool, lambda at, *qkv: attend_whole(*qkv))
        self._first.index_copy_(0, self._slot, self.model.next_token(hidden[-1:]))

    def _step(self, chunk: bool, batch: int) -> None:
        """Compute a chunk of the prompt in `_slot` if wanted, and a token for each of the first `batch`
        slots."""
        head = self.chunk if chunk else 0
        active = self._active[:batch]
        nowhere = len(self._places) - 1
        places = torch.where(active, self._positions[:batch], nowhere)
        rows, slots = self.model.embedding[self._tokens[:batch]], self._places[:batch]
        at = places
        if chunk:
            chunked = self._begin + self._places[:head]
            prompt = self._prompts.index_select(0, self._slot)[0].index_select(0, chunked)
            rows, slots = torch.cat([prompt, rows]), torch.cat([self._slot.expand(head), slots])
            at = torch.cat([chunked, places])
        mask = torch.zeros(len(at), len(self._places), device=at.device, dtype=rows.dtype)
        mask.masked_fill_(self._places[None] > at[:, None], float("-inf"))

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            k, v = self.pool.k[:, number], self.pool.v[:, number]
            found = []
            if chunk:
                mine, seen = (part.index_select(0, self._slot)[0] for part in (k, v))
                found.append(attend_chunk(query[:head], mine, seen, mask[:head]))
            if batch:
                found.append(attend_rows(query[head:], k[:batch], v[:batch], mask[head:]))
            return torch.cat(found) if len(found) > 1 else found[0]

        hidden = self.model.forward(rows, slots, at, self.pool, attend)
        if batch:
            said = self.model.next_token(hidden[head:])
            self._tokens[:batch].copy_(torch.where(active, said, self._tokens[:batch]))
            self._positions[:batch].add_(active)
        if chunk:
            last = (self.config.prompt - 1) % self.chunk
            self._first.index_copy_(0, self._slot, self.model.next_token(hidden[last : last + 1]))

    def _capture(self, splits: Sequence[int], urgent: bool) -> None:
        device = self.model.device
        if device.type != "cuda":
            self._front[SHARED] = self._encode, self._prefill
            self._decode[SHARED] = {batch: partial(self._step, False, batch) for batch in self.batches}
            self._mixed = {batch: partial(self._step, True, batch) for batch in (0, *self.batches)}
            return
        front, beside = (torch.cuda.graph_pool_handle() for _ in range(2))
        streams: dict[int, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {
            0: (torch.cuda.Stream(device), torch.cuda.Stream(device))
        }
        for split in splits:
            decoding, rest = divide(device, split)
            streams[decoding.sms] = decoding.streams[0], rest.streams[0]
        for split, (mine, others) in streams.items():
            self._front[split] = (
                _captured(self._encode, others, front),
                _captured(self._prefill, others, front),
            )
            self._decode[split] = {
                batch: _captured(partial(self._step, False, batch), mine, beside) for batch in self.batches
            }
        if urgent:
            stream = torch.cuda.Stream(device, priority=-1)
            self._front[SCREENS_FIRST] = (
                _captured(self._encode, stream, front),
                _captured(self._prefill, stream, front),
            )
        self._mixed = {
            batch: _captured(partial(self._step, True, batch), streams[0][1], front)
            for batch in (0, *self.batches)
        }


def _captured(run: Callable[[], None], stream: torch.cuda.Stream, pool: Any) -> Stage:
    """Capture it as a CUDA graph after a warm-up run, and replay it once, which uploads the graph."""
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with (
        no_collection(),
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        run()
    graph.replay()
    torch.cuda.synchronize()
    replay: Stage = graph.replay
    return replay
