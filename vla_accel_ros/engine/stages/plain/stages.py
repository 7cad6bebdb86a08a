"""The plain stages of one engine: makes them, has a call for each micro-batch, and staggered chunks.

`build` makes graphs ahead; others are made when something new comes first: other image sizes, or more words
than were prepared. Their number is bounded; the least recently used are dropped. Calls share buffers, so each
holds a lock until its work is in the stream. Graphs of prefixes share one memory pool and those of steps
another, because a prefix and a step may be computed at once. A graph whose results stay where it left them
has a pool of its own: in a shared one, another graph's replay would overwrite them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.results import Results
from vla_accel_ros.engine.recent import Recent
from vla_accel_ros.engine.stages.denoise.denoise import Form, Guides
from vla_accel_ros.engine.stages.denoise.seats import ChunkStart
from vla_accel_ros.engine.stages.memory.host_buffers import Readback
from vla_accel_ros.engine.stages.plain.prefix import PlainFrame, PlainPrefix, Resize
from vla_accel_ros.engine.stages.plain.step import PlainChunk, PlainOpening, PlainStep
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.models.flow.sampling import Pending
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.models.micro_requests import ACTIONS, DENOISE
from vla_accel_ros.models.network_policy import HostInputs
from vla_accel_ros.models.policies import CapturablePolicy

LENGTHS = 64
"""Most pairs of numbers of images and words with graphs: prompts of SmolVLA have up to 48 words."""

SIZES = 4
"""Most sets of image sizes with graphs."""

GROUP = 16
"""Numbers of words that `build` reports together."""


class PlainStages:
    """What a policy computes of a frame and of a chunk, over a pool of prefixes.

    time_rule, solver: of the flow, see models.flow.sampling. seats: of staggered chunks. Raises RuntimeError
    in one sentence, at the first capture, if the policy cannot be captured.
    """

    def __init__(
        self,
        policy: CapturablePolicy,
        pool: KVPool,
        time_rule: str = "openpi",
        solver: str = EULER,
        seats: int = 0,
    ) -> None:
        self.policy, self.pool, self._time_rule, self._solver = policy, pool, time_rule, solver
        cuda = policy.device.type == "cuda"
        # Graphs share memory only if they were recorded on one stream.
        self._seeing, self._moving = (torch.cuda.Stream(policy.device) if cuda else None for _ in range(2))
        memories = [torch.cuda.graph_pool_handle() if cuda else None for _ in range(2)]
        self.results = Results(policy, pool)
        self.prefix = PlainPrefix(policy, pool, LENGTHS, memories[0])
        memory = None if policy.chain.acts == DENOISE else memories[1]
        self._opening = PlainOpening(policy, pool, LENGTHS + seats, memory)
        self._places = range(1 + seats) if policy.chain.of_chunk else range(1)
        self.step = PlainStep(policy, pool, len(Form) * LENGTHS * len(self._places), memories[1], solver)
        self._actions = Readback(policy.device, 1, policy.config.horizon, policy.config.action_dim, 0)
        self._memory, self._pixels = memories[0], dict[tuple[int, ...], Tensor]()
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
        counts = {max(count, self.policy.chain.least_images) for count in views}
        pairs = [(count, words) for words in sorted(set(prompts)) for count in sorted(counts)]
        groups, forms = _groups(pairs[:LENGTHS]), tuple(forms)
        shape = (1, self.policy.config.horizon, self.policy.config.action_dim)
        steps = sorted(set(steps)) if groups and self.policy.chain.acts == DENOISE else ()
        with self.pool.holding(1) as (slot,):
            for done, (name, group) in enumerate(groups):
                progress(name, done, len(groups))
                for pair in group:
                    self._build(pair, slot, forms)
            for number in steps:
                self.submit(torch.zeros(shape), self._any_state(), [slot], [0], number).wait()

    def _build(self, pair: tuple[int, int], slot: int, forms: Iterable[Form]) -> None:
        """Capture such a prefix, of which there is one in the slot then, and the steps from it."""
        (views, words), policy = pair, self.policy
        pixels, tokens = self._room(views), [0] * words
        more = {leaf.name: torch.zeros(leaf.shape) for leaf in policy.chain.inputs}
        of_words = self.results.compute(policy, torch.tensor(tokens))
        state = torch.zeros(policy.config.state_dim)
        frame = PlainFrame(slot, pixels, tokens, state, more, of_words, self.prefix.stages)
        with self._observing, self.prefix.call():
            while frame.stages:
                self._next(frame)
        if policy.chain.acts != DENOISE:
            self.forward(state, slot)
            return
        for seat in self._places:
            chunk = self.chunk(1, seat)
            noise = torch.zeros(1, policy.config.horizon, policy.config.action_dim)
            chunk.begin(ChunkStart(noise, self._any_state(), self.results.of(slot)))
            with self.denoising():
                for chunk.form in forms:
                    self._choose(chunk)

    def _any_state(self) -> Tensor | None:
        return torch.zeros(1, self.policy.config.state_dim) if self.policy.chain.takes_state else None

    @torch.inference_mode()
    def begin(
        self,
        given: HostInputs,
        state: Tensor,
        slot: int,
        taken: Callable[[], None] = lambda: None,
    ) -> PlainFrame:
        """Compute the first micro-batch of an observation; `resume` computes the others.

        state float32 [S], normalised. taken: called once the images are not needed any longer; an exception
        ends the call. Only the reading of the images is waited for.
        """
        of_words = self.results.of_words(self.policy, torch.tensor(given.tokens))
        with self._observing, self.prefix.call():
            resize = self.resize(given.images)
            inputs = resize.pixels, given.tokens, state, given.more, of_words
            frame = PlainFrame(slot, *inputs, self.prefix.stages)
            resize.upload.begin(given.images)
            try:
                self._run(resize, self._seeing)
                resize.upload.read()
                self._next(frame)
            finally:  # the images may be overwritten after this, even after an error
                resize.upload.end()
        taken()
        return frame

    @torch.inference_mode()
    def resume(self, frame: PlainFrame) -> None:
        """Compute the next micro-batch of a frame. The last keeps its results in the slot."""
        with self._observing, self.prefix.call():
            self._next(frame)

    def _next(self, frame: PlainFrame) -> None:
        prefix = self.prefix
        prefix.load(frame)
        self._run(prefix, self._seeing)
        prefix.store(frame)
        if not frame.stages:
            self.results.put(frame.slot, {**frame.of_words, **prefix.left})

    @torch.inference_mode()
    def forward(self, state: Tensor | None, slot: int) -> Pending:
        """A chunk of a policy that acts in one forward, from the frame in a slot. state float32 [S],
        normalised, for a policy that takes one. Blocks on nothing."""
        with self.denoising():
            self._opening.load(self.results.of(slot), state)
            self._run(self._opening, self._moving)
            self._actions.x.copy_(self._opening.left[0][ACTIONS])
            return self._actions.all()

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
        (slot,), (guide,), (counted,) = slots, guides or (None,), joints or (None,)
        with self.denoising():
            if steps not in self._chunks:
                self._chunks[steps] = self.chunk(steps)
            chunk = self._chunks[steps]
            chunk.begin(ChunkStart(noise, state, self.results.of(slot), guide, counted))
            self.advance(chunk, steps)
            return chunk.pending()

    def chunk(self, steps: int, place: int = 0) -> PlainChunk:
        """Returns a new PlainChunk."""
        return PlainChunk(self.policy, steps, self._time_rule, self._solver, place)

    def advance(self, chunk: PlainChunk, steps: int) -> None:
        """Compute the next steps of a chunk. The caller holds `denoising`."""
        step = self.step
        self._choose(chunk)
        step.load(chunk)
        for _ in range(steps):
            step.advance(chunk)
        step.store(chunk)

    def _choose(self, chunk: PlainChunk) -> None:
        """Capture the step of a chunk; before the first, compute what is computed once for it."""
        step, opening = self.step, self._opening
        if chunk.at == 0 and opening.micro_requests:
            state = chunk.given["state"][0] if "state" in chunk.given else None
            opening.load(chunk.kept, state, chunk.place)
            self._run(opening, self._moving)
            chunk.opening = opening.left
        step.choose(chunk)
        self._capture(step, self._moving)

    @contextmanager
    def denoising(self) -> Iterator[None]:
        """One call at a time, ordered after the one before."""
        with self._denoising, self.step.call():
            yield

    def resize(self, images: Sequence[np.ndarray]) -> Resize:
        """The stage for images uint8 [H, W, 3] of these sizes, cropped and turned like these."""
        sizes, count = tuple((*image.shape, *image.strides) for image in images), len(images)
        return self._resizes.get(sizes) or self._resizes.put(
            sizes, Resize(self.policy, count, self._room(count), self._memory)
        )

    def _room(self, count: int) -> Tensor:
        """Memory for the network's pixels of so many images."""
        side, device = self.policy.image_size, self.policy.device
        image = torch.zeros(side, side, 3, dtype=torch.uint8, device=device)
        pixels = self.policy.resized([image] * count).clone()
        return self._pixels.setdefault(tuple(pixels.shape), pixels)

    def _run(self, stage: Stage, stream: torch.cuda.Stream | None) -> None:
        self._capture(stage, stream)
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
        self._chunks = [stages.chunk(steps, 1 + seat) for seat in range(count)]

    def prepare(self) -> None:
        """Does nothing: `PlainStages.build` captures the steps."""

    @torch.inference_mode()
    def take(self, seat: int, start: ChunkStart) -> None:
        """See Seats; kv: what the steps read of the frame, by name. Raises ValueError for a guide of another
        shape."""
        with self._stages.denoising():
            self._chunks[seat].begin(start)

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
