"""The kernel stages of one engine, with a call for each micro-request.

Stages are made on first use (engine.stages.making), or ahead of time by `build`. Calls of one stage share its
buffers, so each holds the stage's lock from its inputs to its outputs; on a GPU that is only the time to put
the work in the stream. The results are the plain model's, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.stages.denoise.denoise import Denoise, Form, Guides
from vla_accel_ros.engine.stages.making import MadeStages
from vla_accel_ros.engine.stages.memory.offload_report import OffloadReport, measure
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.flow.sampling import Flow, Pending

Progress = Callable[[str, int, int], None]
"""Called with what is made next, how many are made, and of how many."""

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


class Stages(MadeStages):
    """encode, prefill, denoise and finish of a model over a pool of prefixes; arguments: see MadeStages.

    A call is for the partition of the current stream.
    """

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
        jobs: list[tuple[str, Callable[[], object]]] = []
        device = self.pool.k.device
        with self.pool.holding(1) as (slot,):
            for count in sorted(set(views)):
                images = np.zeros((count, config.vision.image_size, config.vision.image_size, 3), np.uint8)
                for bucket, frames in product(buckets, powers_of_two(together + 1)):
                    prompt = torch.zeros(bucket, dtype=torch.int64)
                    prefixes = "prefix" if frames == 1 else f"{frames} prefixes"
                    name = f"{prefixes} of {count} images and {bucket} words"
                    jobs.append((name, partial(self._build_prefix, images, prompt, slot, frames)))
            for number in sorted(set(steps)):
                for batch in sorted(set(batches)):
                    noise = torch.zeros(batch, config.horizon, config.action_dim, device=device)
                    state = torch.zeros(batch, config.state_dim, device=device)
                    arguments = noise, state, [slot] * batch, [1] * batch, number
                    for form in sorted(set(forms)):
                        name = f"{number} denoising steps of {batch} {CHUNKS[form]}"
                        guides = [_example(form, noise[0].cpu())] * batch
                        jobs.append((name, partial(self.act, *arguments, guides)))
            for done, (name, make) in enumerate(jobs):
                progress(name, done, len(jobs))
                make()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

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
        states: Sequence[Tensor] = (),
    ) -> list[int]:
        """Write prefixes into pool slots; returns their lengths.

        frames: V images each, the same V for all. prompts: int64 [t] each, or a function that returns them,
        called while the images are encoded. slots: one for each. taken: called once the images are not needed
        any longer; an exception ends the call. states: see Prefill.set; read after prompts. Only the reading
        of the images is waited for; the rest is ordered by the current stream.
        """
        batch, views = len(frames), len(frames[0])
        encode = self.encode(batch * views)
        with self.prefixing():
            encode.upload.begin([image for frame in frames for image in frame])
            try:
                self.replay(encode, self.partition())
                encode.upload.read()
                prompts = prompts() if callable(prompts) else prompts
            finally:  # the images may be overwritten after this, even after an error
                encode.upload.end()
            taken()
            prefill = self.prefill(views, max(len(prompt) for prompt in prompts), batch)
            tokens = views * self.model.config.image_tokens
            for slot, image in zip(slots, encode.tokens.split(tokens), strict=True):
                self.images[slot, :tokens].copy_(image)
            prefill.set(prompts, slots, states)
            self.replay(prefill, self.partition())
        return [tokens + len(prompt) + prefill.beside for prompt in prompts]

    @torch.inference_mode()
    def reword(self, source: int, tokens: int, prompt: Tensor, slot: int) -> int:
        """Write the prefix of a slot's images (`tokens` tokens) and another prompt into another slot.

        Returns its length. The images are not encoded again: their tokens are kept.
        """
        views = tokens // self.model.config.image_tokens
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
        stage = self.finish()
        with self._locks["finish",]:
            stage.set(slot, length)
            self.replay(stage, self.partition())
            return stage.hidden[0, 0].clone()

    def _build_prefix(self, images: np.ndarray, prompt: Tensor, slot: int, frames: int = 1) -> None:
        states = [torch.zeros(self.model.config.state_dim)] * self.takes_state
        self.observe([images] * frames, [prompt] * frames, [slot] * frames, states=states * frames)
        if self.groups is not None:
            self.groups.build(images, prompt, slot, states)


def _example(form: Form, actions: Tensor) -> Inpainting | None:
    """An inpainting that gives a chunk of actions [H, A] that form."""
    if form is Form.FREE:
        return None
    return Inpainting(actions, torch.zeros(len(actions)), committed=int(form is Form.COMMITTED))
