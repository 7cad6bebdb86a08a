"""What the micro-requests of a frame leave, in rooms that are allocated once, one for each slot.

A family declares the largest shape of each result. Keys and values that text may continue lie in the pool
(`kv`). Results that are kept for an instruction are shared by the frames that have those words, so a slot
holds only a reference to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import gt
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool, check_bytes
from vla_accel_ros.engine.recent import Recent
from vla_accel_ros.models.layers import gemma
from vla_accel_ros.models.micro_requests import INSTRUCTION, KV, WORDS, Leaf
from vla_accel_ros.models.policies import AnyPolicy, computed

INSTRUCTIONS = 16
"""Instructions whose results are kept besides those of the frames in slots."""


class Results:
    """The results of the frames in a pool's slots, by name; see models.micro_requests.Chain.kept. worded:
    what is computed once an instruction. Raises ValueError if they do not fit into the device's free
    memory."""

    def __init__(self, policy: AnyPolicy, pool: KVPool) -> None:
        chain, self._pool = policy.chain, pool
        self.worded = [micro for micro in chain.of_frame if micro.kept == INSTRUCTION]
        self._recent = Recent[tuple[int, ...], Mapping[str, Any]](INSTRUCTIONS)
        shared = {leaf.name for micro in self.worded for leaf in micro.leaves}
        self._names = chain.kept.keys()
        self._rooms: dict[str, Tensor] = {}
        for name, leaf in chain.kept.items():
            if name != KV and name not in shared:
                shape = (pool.slots, *shape_of(leaf, policy))
                dtype = dtype_of(leaf, policy)
                count = dtype.itemsize * math.prod(shape)
                check_bytes(f"'{name}' of {pool.slots} frames", count, policy.device)
                self._rooms[name] = torch.zeros(shape, device=policy.device, dtype=dtype)
        self._of: list[dict[str, Any]] = [{} for _ in range(pool.slots)]

    def of(self, slot: int) -> Mapping[str, Any]:
        """The results of the frame in a slot, as they were left."""
        return self._of[slot]

    def of_words(self, policy: AnyPolicy, words: Tensor) -> Mapping[str, Any]:
        """What is kept for an instruction, of its ids int64 [t]: the same objects for the same words."""
        if not self.worded:
            return {}
        ids = tuple(words.tolist())
        results = self._recent.get(ids)
        return self._recent.put(ids, self.compute(policy, words)) if results is None else results

    def compute(self, policy: AnyPolicy, words: Tensor) -> Mapping[str, Any]:
        """The same, computed now and not held."""
        values: dict[str, Any] = {WORDS: words.to(policy.device)}
        for micro in self.worded:
            values |= computed(policy, micro, values)
        del values[WORDS]
        return values

    def put(self, slot: int, made: Mapping[str, Any]) -> None:
        """Keep what is to be kept of the results of a frame. Raises RuntimeError if one is larger than
        declared."""
        stored: dict[str, Any] = {}
        for name in self._names & made.keys():
            value = made[name]
            if name == KV:
                room = self._pool.view(slot, value.k.shape[3])
                stored[name] = gemma.KV(*(into.copy_(part) for into, part in zip(room, value, strict=True)))
            elif name in self._rooms:
                stored[name] = fill(self._rooms[name][slot], name, value)
            else:
                stored[name] = value
        self._of[slot] = stored


def fill(room: Tensor, name: str, value: Tensor) -> Tensor:
    """Copy a value to the beginning of a room in every dimension; returns that part of the room. Raises
    RuntimeError if there is no room."""
    if value.ndim != room.ndim or any(map(gt, value.shape, room.shape)):
        raise RuntimeError(
            f"'{name}' has shape {list(value.shape)}, but the family declares {list(room.shape)} as the "
            "largest; declare what it can be."
        )
    return room[tuple(slice(size) for size in value.shape)].copy_(value)


def shape_of(leaf: Leaf, policy: AnyPolicy) -> tuple[int, ...]:
    """The largest shape of a result."""
    return (int(policy.config.max_prompt),) if leaf.name == WORDS else leaf.shape


def dtype_of(leaf: Leaf, policy: AnyPolicy) -> torch.dtype:
    """The dtype of a result."""
    dtype = policy.kv_dtype if leaf.dtype is None else getattr(torch, leaf.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype
