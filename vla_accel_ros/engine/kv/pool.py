"""Memory of the slots of keys and values, allocated once.

On a GPU a slot's next writer's stream waits for the work that was submitted before each release. Work in one
stream is ordered by itself, so events are recorded only once several streams use slots.
"""

from __future__ import annotations

import math
import os

import torch

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.prefixes import Slots
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import Span

GIB = 1 << 30


class KVPool(Slots):
    """`slots` sequences of up to `max_tokens` tokens each; without a config, slots alone, for a family whose
    frames leave no keys and values.

    k, v: [slots, layers, kv_heads, max_tokens, head_dim].
    Raises ValueError if slots or max_tokens is below 1, or if the pool does not fit into the device's free
    memory.
    """

    def __init__(
        self,
        config: GemmaConfig | None,
        slots: int,
        max_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        if slots < 1 or max_tokens < 1:
            raise ValueError(
                f"slots is {slots} and max_tokens {max_tokens}; a pool needs at least 1 of each."
            )
        super().__init__(slots)
        layers, heads, dim = (config.depth, config.kv_heads, config.head_dim) if config else (0, 0, 0)
        shape = (slots, layers, heads, max_tokens, dim)
        check_memory(shape, device, dtype)
        self.max_tokens, self._cuda = max_tokens, device.type == "cuda"
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        # By stream handle: the stream, and the event of its last release there; None if none was recorded.
        self._read: list[dict[int, tuple[torch.cuda.Stream, torch.cuda.Event | None]]] = [
            {} for _ in range(slots)
        ]
        self._streams = set[int]()  # streams that used slots

    def acquire(self) -> int:
        with self.lock:
            slot = super().acquire()
            read, self._read[slot] = self._read[slot], {}
        if self._cuda:
            current = current_stream(self.k.device)
            self._streams.add(current.cuda_stream)
            for number, (stream, event) in read.items():
                if number != current.cuda_stream:
                    current.wait_event(event or stream.record_event())
        return slot

    def release(self, slot: int) -> None:
        with self.lock:
            super().release(slot)
            if self._cuda:
                # With a single stream nobody waits for an event. If another stream writes later, it waits for
                # an event that is recorded at that time.
                stream = current_stream(self.k.device)
                number = stream.cuda_stream
                self._streams.add(number)
                self._read[slot][number] = stream, stream.record_event() if len(self._streams) > 1 else None

    def event(self) -> torch.cuda.Event | None:
        return current_stream(self.k.device).record_event() if self._cuda else None

    def wait(self, event: torch.cuda.Event) -> None:
        current_stream(self.k.device).wait_event(event)

    def view(self, slot: int, tokens: int) -> KV:
        """The first tokens of a slot, as a batch of one: [layers, 1, kv_heads, tokens, head_dim]."""
        return KV(self.k[slot, :, None, :, :tokens], self.v[slot, :, None, :, :tokens])

    def span(self, slot: int, start: int, end: int) -> Span:
        """Tokens start to end of a slot."""
        return Span(self.k, self.v, slot, start, end)


def check_memory(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError, in one sentence, if two tensors [slots, .., .., tokens, ..] do not fit."""
    label = f"a KV pool of {shape[0]} slots of {shape[3]} tokens"
    check_bytes(label, 2 * dtype.itemsize * math.prod(shape), device)


def check_bytes(what: str, needed: int, device: torch.device) -> None:
    """Raise ValueError, in one sentence, if so many bytes of frames do not fit."""
    free = _free_bytes(device)
    if free is not None and needed > free:
        raise ValueError(
            f"{what} needs {needed / GIB:.2f} GiB but {device} has {free / GIB:.2f} GiB free; use fewer "
            "slots, fewer cameras or a shorter prompt."
        )


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu" and os.path.exists("/proc/meminfo"):
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    return None
