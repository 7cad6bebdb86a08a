"""The plain stages of one engine: makes them, has a call for each micro-request, and staggered chunks.

`build` makes graphs ahead; others are made when something new comes first: other image sizes, or more words
than were prepared. Their number is bounded; the least recently used are dropped. Calls share buffers, so each
holds a lock until its work is in the stream. Graphs of prefixes share one memory pool and those of steps
another, because a prefix and a step may be computed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.results import Results
from vla_accel_ros.engine.stages.denoise.denoise import Form, Guides
from vla_accel_ros.engine.stages.plain.prefix import PlainPrefix, Resize
from vla_accel_ros.engine.stages.plain.step import PlainChunk, PlainStep, shapes_of
from vla_accel_ros.engine.stages.stage import Recent, Stage
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.flow.sampling import Flow, Pending
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.models.policies import CapturablePolicy
from vla_accel_ros.models.policy import HostInputs

LENGTHS = 64
"""Most pairs of numbers of images and words with graphs: prompts of SmolVLA have up to 48 words."""

SIZES = 4
"""Most sets of image sizes with graphs."""

GROUP = 16
"""Numbers of words that `build` reports together."""


class PlainStages:
    """encode and prefill, and denoise, of a policy over a pool of prefixes.

    time_rule, solver: of the flow, see models.flow.sampling. Raises RuntimeError in one sentence, at the
    first capture, if the policy cannot be captured.
    """

    def __init__(
        self, policy: CapturablePolicy, pool: KVPool, time_rule: str = "openpi", solver: str = EULER
    ) -> None:
        self.policy, self.pool, self._time_rule, self._solver = policy, pool, time_rule, solver
        cuda = policy.device.type == "cuda"
        # Graphs share memory only if they were recorded on one stream.
        self._seeing, self._moving = (torch.cuda.Stream(policy.device) if cuda else None for _ in range(2))
        memories = [torch.cuda.graph_pool_handle() if cuda else None for _ in range(2)]
        self.results = Results(policy, pool)
        self.prefix = PlainPrefix(policy, pool, LENGTHS, memories[0])
        self.step = PlainStep(policy, pool, len(Form) * LENGTHS, memories[1], solver)
        self._memory = memories[0]
        self._resizes = Recent[tuple[tuple[int, ...], ...], Resize](SIZES)
        self._chunks: dict[int, PlainChunk] = {}
        self._observing, self._denoising = threading.Lock(), threading.Lock()

    @torch.inference_mode()
    def build(
        self,
        views: Iterable[int],
        prompts: Iterable[int],
        steps: Iterable[int],
        progress: Callable[[str, int, int], None] = lambda name, done, total: None,
        forms: Iterable[Form] = (Form.FREE,),
    ) -> None:
        """Make and capture ahead: for numbers of images and of words (at most LENGTHS pairs, those with few
        words first), numbers of steps, and forms of chunks. Image sizes are unknown before a frame comes.

        progress: called with what is made next, how much is made, and of how much. It uses a free slot of the
        pool meanwhile: raises PoolExhausted if there is none.
        """
        pairs = [(count, words) for words in sorted(set(prompts)) for count in sorted(set(views))]
        groups, forms = _groups(pairs[:LENGTHS]), tuple(forms)
        shape = (1, self.policy.config.horizon, self.policy.config.action_dim)
        with self.pool.holding(1) as (slot,):
            for done, (name, group) in enumerate(groups):
                progress(name, done, len(groups))
                for pair in group:
                    self._build(pair, slot, forms)
            for number in sorted(set(steps)) if groups else ():
                self.submit(torch.zeros(shape), self._any_state(), [slot], [0], number).wait()

    def _build(self, pair: tuple[int, int], slot: int, forms: Iterable[Form]) -> None:
        """Capture such a prefix, of which there is one in the slot then, and the steps from it."""
        with self._observing, self.prefix.call():
            self.prefix.variant = pair
            self._run(self.prefix)
            self.results.put(slot, self.prefix.left)
        kept = {name: self.results.of(slot)[name] for name in self.policy.chain.of_steps}
        with self.denoising():
            for form in forms:
                self.step.variant = shapes_of(kept), form, self.policy.joints
                self._capture(self.step, self._moving)

    def _any_state(self) -> Tensor | None:
        return torch.zeros(1, self.policy.config.state_dim) if self.policy.chain.takes_state else None

    @torch.inference_mode()
    def observe(
        self,
        given: HostInputs,
        state: Tensor,
        slot: int,
        taken: Callable[[], None] = lambda: None,
    ) -> int:
        """Keep the results of an observation in a slot; returns the length of its keys and values.

        state float32 [S], normalised. taken: called once the images are not needed any longer; an exception
        ends the call. Only the reading of the images is waited for.
        """
        prefix = self.prefix
        with self._observing, prefix.call():
            resize = self.resize(given.images)
            resize.upload.begin(given.images)
            try:
                self._run(resize)
                resize.upload.read()
                prefix.variant = len(given.images), len(given.tokens)
                prefix.set(given.tokens, state, given.more)
                self._run(prefix)
                self.results.put(slot, prefix.left)
            finally:  # the images may be overwritten after this, even after an error
                resize.upload.end()
        taken()
        return prefix.length

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
        """Sample a chunk from a prefix. Once its graphs are made this blocks on nothing and allocates
        nothing.

        As in engine.stages.stages.Stages, but for one chunk: noise float32 [1, H, A]; state float32 [1, S],
        for a policy that takes a state; the slot of the prefix; guides: what it must agree with,
        None = nothing; joints: numbers of an action that magnitudes count, None = the policy's.
        """
        (slot,), (guide,) = slots, guides or (None,)
        (counted,) = joints or (self.policy.joints,)
        with self.denoising():
            if steps not in self._chunks:
                self._chunks[steps] = self.chunk(steps)
            chunk = self._chunks[steps]
            chunk.begin(noise, state, self.results.of(slot), guide, counted)
            self.advance(chunk, steps)
            return chunk.pending()

    def chunk(self, steps: int) -> PlainChunk:
        """Returns a new PlainChunk."""
        return PlainChunk(self.policy, steps, self._time_rule, self._solver)

    def advance(self, chunk: PlainChunk, steps: int) -> None:
        """Compute the next steps of a chunk. The caller holds `denoising`."""
        step = self.step
        step.variant = shapes_of(chunk.kept), chunk.form, chunk.joints
        self._capture(step, self._moving)
        step.load(chunk)
        for _ in range(steps):
            step.advance(chunk)
        step.store(chunk)

    @contextmanager
    def denoising(self) -> Iterator[None]:
        """One call at a time, ordered after the one before."""
        with self._denoising, self.step.call():
            yield

    def resize(self, images: Sequence[np.ndarray]) -> Resize:
        """The stage for images uint8 [H, W, 3] of these sizes, cropped and turned like these."""
        sizes = tuple((*image.shape, *image.strides) for image in images)
        pixels = self.prefix.pixels[: len(sizes)]
        return self._resizes.get(sizes) or self._resizes.put(sizes, Resize(self.policy, pixels, self._memory))

    def _run(self, stage: Stage) -> None:
        self._capture(stage, self._seeing)
        stage.run()

    def _capture(self, stage: Stage, stream: torch.cuda.Stream | None) -> None:
        try:
            stage.capture(stream)
        except RuntimeError as error:
            raise RuntimeError(
                f"the plain functions of a {self.policy.config.kind} policy cannot be captured ({error}); "
                "set fast to false."
            ) from error


class CapturedPlainSeats:
    """`Seats` of plain stages: every chunk's step is its own replay, so its bits do not depend on other
    chunks, and weights are read once for each chunk."""

    def __init__(self, stages: PlainStages, count: int, steps: int) -> None:
        self.count, self.steps, self._stages = count, steps, stages
        self._chunks = [stages.chunk(steps) for _ in range(count)]

    def prepare(self) -> None:
        """Does nothing: `PlainStages.build` captures the steps."""

    @torch.inference_mode()
    def take(
        self,
        seat: int,
        noise: Tensor,
        state: Tensor | None,
        kv: Any,
        guide: Inpainting | None = None,
        joints: int | None = None,
    ) -> None:
        """See Seats; kv: what the steps read of the frame, by name. Raises ValueError for a guide of another
        shape."""
        with self._stages.denoising():
            counted = joints or self._stages.policy.joints
            self._chunks[seat].begin(noise, state, kv, guide, counted)

    def restate(self, states: Mapping[int, Tensor]) -> None:
        """See Seats."""
        for seat, state in states.items():
            self._chunks[seat].given["state"].copy_(state)

    def leave(self, seat: int) -> None:
        """Does nothing: a chunk is computed only when it is asked for."""

    @torch.inference_mode()
    def step(self, taken: Sequence[int]) -> None:
        """See Seats."""
        with self._stages.denoising():
            for seat in taken:
                self._stages.advance(self._chunks[seat], 1)

    @torch.inference_mode()
    def flow(self, seat: int) -> Flow:
        """See Seats."""
        chunk = self._chunks[seat]
        return Flow(chunk.readback.x.clone(), chunk.update.clone())

    @torch.inference_mode()
    def results(self, seats: Sequence[int]) -> Sequence[Pending]:
        """See Seats."""
        return [self._chunks[seat].pending() for seat in seats]


def _groups(pairs: Sequence[tuple[int, int]]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Pairs with one number of images, GROUP numbers of words at a time, and a name for each group."""
    groups = []
    for views in sorted({count for count, _ in pairs}):
        same = [pair for pair in pairs if pair[0] == views]
        for start in range(0, len(same), GROUP):
            group = same[start : start + GROUP]
            (_, first), (_, last) = group[0], group[-1]
            words = f"{first}" if first == last else f"{first} to {last}"
            groups.append((f"prefixes of {views} images and {words} words, and steps from them", group))
    return groups
