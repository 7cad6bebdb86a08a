"""All keys and values there will ever be, allocated once, in slots that are counted.

A prefix lives in one slot. Whoever reads it holds a reference, so that a newer frame can never overwrite what
an action or an answer is still reading. A slot is reused when its count is zero; on a GPU its next writer
waits, in its stream, for the work that was submitted before each release. Running out is an error and not a
wait: vision that waited for a slow reader would make every camera frame old.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import Span

GIB = 1 << 30


class PoolExhausted(RuntimeError):
    """Every slot is held by somebody."""


class KVPool:
    """`slots` sequences of up to `max_tokens` tokens each.

    k, v: [slots, layers, kv_heads, max_tokens, head_dim]. Safe to use from several threads, and from what
    the garbage collector calls: it may release a slot in the middle of any method.
    Raises ValueError if the pool does not fit into the device's free memory.
    """

    def __init__(
        self, config: GemmaConfig, slots: int, max_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        if slots < 1 or max_tokens < 1:
            raise ValueError(
                f"slots is {slots} and max_tokens {max_tokens}; a pool needs at least 1 of each."
            )
        shape = (slots, config.depth, config.kv_heads, max_tokens, config.head_dim)
        check_memory(shape, device, dtype)
        self.max_tokens = max_tokens
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self._counts = [0] * slots
        self._read: list[dict[int, torch.cuda.Event]] = [{} for _ in range(slots)]  # by stream
        self._lock = threading.RLock()

    @property
    def slots(self) -> int:
        """How many sequences fit."""
        return len(self._counts)

    @property
    def free(self) -> int:
        """Slots nobody holds."""
        with self._lock:
            return self._counts.count(0)

    def acquire(self) -> int:
        """A free slot, held once. Raises PoolExhausted if there is none."""
        with self._lock:
            if 0 not in self._counts:
                raise PoolExhausted(
                    f"all {self.slots} KV slots are held; release them earlier or give the engine more."
                )
            slot = self._counts.index(0)
            self._counts[slot] = 1
            read, self._read[slot] = self._read[slot], {}
        for event in read.values():
            torch.cuda.current_stream(self.k.device).wait_event(event)
        return slot

    @contextmanager
    def filling(self) -> Iterator[int]:
        """A free slot for a block that fills it, and keeps it unless it fails. Raises as acquire does."""
        slot = self.acquire()
        with self.keeping(slot):
            yield slot

    @contextmanager
    def keeping(self, slot: int) -> Iterator[None]:
        """A slot that is held for a block, which keeps it unless it fails."""
        try:
            yield
        except BaseException:
            self.release(slot)
            raise

    @contextmanager
    def holding(self, count: int) -> Iterator[list[int]]:
        """Free slots for a block, given back after it. Raises as acquire does."""
        slots: list[int] = []
        try:
            for _ in range(count):
                slots.append(self.acquire())
            yield slots
        finally:
            for slot in slots:
                self.release(slot)

    def retain(self, slot: int) -> None:
        """Hold a slot that is already held once more."""
        with self._lock:
            self._held(slot)
            self._counts[slot] += 1

    def release(self, slot: int) -> None:
        """Give one reference back; the last one frees the slot. Raises ValueError if nobody holds it."""
        with self._lock:
            self._held(slot)
            self._counts[slot] -= 1
            if self.k.is_cuda:
                stream = torch.cuda.current_stream(self.k.device)
                self._read[slot][stream.cuda_stream] = stream.record_event()

    def view(self, slot: int, tokens: int) -> KV:
        """The first tokens of a slot, as a batch of one: [layers, 1, kv_heads, tokens, head_dim]."""
        return KV(self.k[slot, :, None, :, :tokens], self.v[slot, :, None, :, :tokens])

    def span(self, slot: int, start: int, end: int) -> Span:
        """Tokens start to end of a slot."""
        return Span(self.k, self.v, slot, start, end)

    def _held(self, slot: int) -> None:
        if not 0 <= slot < self.slots or not self._counts[slot]:
            raise ValueError(f"KV slot {slot} is held by nobody; it was released too often.")


def check_memory(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError, in one sentence, if two tensors [slots, .., .., tokens, ..] do not fit."""
    needed = 2 * dtype.itemsize
    for size in shape:
        needed *= size
    free = _free_bytes(device)
    if free is not None and needed > free:
        raise ValueError(
            f"a KV pool of {shape[0]} slots of {shape[3]} tokens needs {needed / GIB:.2f} GiB but "
            f"{device} has {free / GIB:.2f} GiB free; use fewer slots, fewer cameras or a shorter prompt."
        )


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu" and os.path.exists("/proc/meminfo"):
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    return None
