"""From images and words to what is kept of a frame: a policy's plain functions, captured.

Without capture a small network is bound by kernel launches. Captured, it runs the same kernels over the same
shapes, so the results are bit for bit those of the plain path. Therefore nothing is padded: there is a graph
for each set of image sizes, and for each number of images and of words that a micro-batch reads. What is kept
for an instruction is computed by the plain functions and copied to where graphs read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from vla_accel_ros.models.micro_requests import INDEX, INSTRUCTION, KV, PIXELS, WORDS, Leaf, micro_batches
from vla_accel_ros.models.policies import CapturablePolicy, computed

Shapes = tuple[tuple[str, Any], ...]
"""Names of results and their shapes, of keys and values that of the keys."""


class Resize(Stage):
    """Resizes `count` images of certain sizes, from `upload` to the network's pixels."""

    def __init__(self, policy: CapturablePolicy, count: int, pixels: Tensor, memory: Any) -> None:
        super().__init__(policy.device, memory=memory)
        self._policy, self.pixels = policy, pixels
        self.upload = ImageUpload(policy.pixel_rule, policy.image_size, count, policy.device)

    def body(self) -> None:
        self.pixels.copy_(self._policy.resized([view.pixels for view in self.upload.views.now]))


@dataclass(eq=False)
class PlainFrame:
    """A frame in progress, whose pixels, as the network gets them, lie in `pixels`. slot: of its results;
    tokens: ids of its prompt; state float32 [S], normalised; more: further inputs; of_words: what is kept for
    its instruction. stages: of its micro-batches to come; between: what these read of those so far; length:
    of its keys and values, in the end."""

    slot: int
    pixels: Tensor
    tokens: Sequence[int]
    state: Tensor
    more: Mapping[str, Tensor]
    of_words: Mapping[str, Any]
    stages: Sequence[str]
    between: Mapping[str, Any] = field(default_factory=dict)
    length: int = 0

    @property
    def stage(self) -> str:
        """The next one; empty once all are computed."""
        return self.stages[0] if self.stages else ""

    @property
    def images(self) -> int:
        """Number of image tokens."""
        return max(0, self.length - len(self.tokens))

    def drop(self) -> None:
        """Compute nothing more of the frame."""
        self.stages = ()


class PlainPrefix(PlainStage):
    """Computes a micro-batch of a frame.

    variant: shapes of its pixels and of what is kept for its instruction, number of words, and which batch.
    """

    variant: tuple[tuple[int, ...], Shapes, int, int]

    def __init__(self, policy: CapturablePolicy, pool: KVPool, most: int, memory: Any) -> None:
        chain, config, self._policy = policy.chain, policy.config, policy
        self._batches = batches = micro_batches(chain.of_frame)
        self.stages = [batch[0][0].stage for batch in batches]
        super().__init__(policy.device, most * len(batches), memory)
        words, state = (torch.int64, (config.max_prompt,)), (torch.float32, (config.state_dim,))
        fields = {leaf.name: (dtype_of(leaf, policy), leaf.shape) for leaf in chain.inputs}
        self._inputs = Inputs(self.device, {"words": words, "state": state, **fields})
        reads = [{name for micro, _ in batch for name in micro.reads} for batch in batches]
        of_words = [leaf for m in chain.of_frame if m.kept == INSTRUCTION for leaf in m.leaves]
        names = {leaf.name for leaf in of_words}
        self._rooms = rooms_of(policy, pool, {n: leaf for n, leaf in chain.kept.items() if n not in names})
        worded = {leaf.name: leaf for leaf in of_words if leaf.name in set().union(*reads)}
        self._worded = Rooms(policy, pool, worded)
        volatile = {*self._inputs.fields, *names}
        stored = self._rooms.keys()
        self._later = [stored | set().union(*reads[n + 1 :]) - volatile for n in range(len(reads))]
        self._reads_words = WORDS in set().union(*reads) | self._rooms.keys()
        self._between: dict[tuple[Shapes, int], Any] = {}
        self._left: dict[Any, dict[str, Any]] = {}
        self._pixels = torch.zeros(0)

    @property
    def left(self) -> dict[str, Any]:
        """What the variant's batch leaves to later ones or the frame, by name; known once it has run or was
        captured."""
        return self._left[self.variant]

    def load(self, frame: PlainFrame) -> None:
        """Load a frame before its next batch. Does not block."""
        tokens = frame.tokens if self._reads_words else ()
        padded = torch.zeros(self._inputs.fields["words"].shape, dtype=torch.int64)
        padded[: len(tokens)] = torch.tensor(tokens)
        self._inputs.put(words=padded, state=frame.state, **frame.more)
        self._worded.load(frame.of_words)
        shapes = shapes_of({name: frame.of_words[name] for name in self._worded.names})
        self.variant = tuple(frame.pixels.shape), shapes, len(tokens), len(self.stages) - len(frame.stages)
        self._pixels = frame.pixels
        for name, value in frame.between.items():
            filled(self._before[name], name, value)

    def store(self, frame: PlainFrame) -> None:
        """Take what its batch has left, which another frame's may overwrite."""
        results, frame.stages = self.left, frame.stages[1:]
        frame.length = int(results[KV].k.shape[3]) if KV in results else 0
        frame.between = {n: _copied(value) for n, value in results.items()} if frame.stages else {}

    @property
    def _before(self) -> dict[str, Any]:
        *variant, batch = self.variant
        return self._left[(*variant, batch - 1)] if batch else {PIXELS: self._pixels}

    @by_kernels
    def body(self) -> None:
        (_, shapes, words, number), fields = self.variant, self._inputs.fields
        values: dict[str, Any] = {**fields, WORDS: fields[WORDS][:words], **self._worded.at(shapes)}
        values |= (earlier := self._before)
        for micro, index in self._batches[number]:
            values |= computed(self._policy, micro, {**values, INDEX: index})
        results = {name: values[name] for name in self._later[number] & values.keys()}
        for name, value in results.items():
            if value is not earlier.get(name):
                results[name] = filled(self._room(name, value, number), name, value)
        self._left[self.variant] = results

    def _room(self, name: str, value: Any, number: int) -> Any:
        """Where a batch leaves a result: not where it read one of that name, since a body may run again."""
        if number + 1 == len(self._batches):
            return self._rooms[name]
        key = shapes_of({name: value}), number % 2
        if key not in self._between:
            self._between[key] = _copied(value)
        return self._between[key]


class Rooms:
    """Memory for results of one frame, as large as declared, by name. What lies there already is not copied
    again."""

    def __init__(self, policy: CapturablePolicy, pool: KVPool, leaves: Mapping[str, Leaf]) -> None:
        self._rooms, self.names = rooms_of(policy, pool, leaves), leaves.keys()
        self._loaded: dict[str, Any] = {}

    def load(self, results: Mapping[str, Any]) -> None:
        """Copy results: objects of engine.kv.results, which each frame has of its own."""
        for name, room in self._rooms.items():
            if self._loaded.get(name) is not results[name]:
                self._loaded.pop(name, None)
                filled(room, name, results[name])
                self._loaded[name] = results[name]

    def at(self, shapes: Shapes) -> dict[str, Any]:
        """The parts of the rooms with results of these shapes."""
        return {name: _corner(self._rooms[name], shape) for name, shape in shapes if name in self._rooms}


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


def shapes_of(kept: Mapping[str, Any]) -> Shapes:
    """The shapes of results."""
    return tuple((name, tuple(v.k.shape if isinstance(v, gemma.KV) else v.shape)) for name, v in kept.items())


def _corner(room: Any, shape: tuple[int, ...]) -> Any:
    """The part of a room with a result of this shape."""
    if isinstance(room, gemma.KV):
        return gemma.KV(*(_corner(part, shape) for part in room))
    return room[tuple(map(slice, shape))]


def _copied(value: Any) -> Any:
    return gemma.KV(*map(_copied, value)) if isinstance(value, gemma.KV) else value.clone()
