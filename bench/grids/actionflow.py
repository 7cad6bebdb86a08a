"""The grid of ActionFlow (section 4.3): K action tokens and prompts of L tokens, frames one after another.

Only the language model, as in the paper's speed figures: prompts are random embeddings. A frame comes as soon
as the last forward is done; its age is from then to its last token on the host. Our systems are requests
through the product's scheduler (grids.language); the time of a forward alone is beside them. `naive pipe`
packs frames in plain torch, which gathers each rider's keys and values in every layer. Speculation gets
drafts of which the first 0, half or all tokens are right, as verified for one frame alone; beside riders a
near tie may round differently, so every row has the number accepted. `fresh` finishes the rest by decodes at
once. `shift` is the cost per frame of a ring buffer that moves its frames from slot to slot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from grids.hugging_face import HuggingFace
from grids.language import Finished, Language
from grids.sharing import equal_part
from shared.timing import Window, median_ms
from vla_accel_ros.engine.config import FRESHNESS, PIPELINED, RATE, SEQUENTIAL, SPECULATIVE
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.packed_stage import Kernels, kernels_for
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.tools.tune.pieces import Body

PROMPTS = 3
HALF = 0.5
ACCEPTANCE = (0.0, HALF, 1.0)


def _nothing(*_: object) -> None:
    """Stands for a kernel, to see what the others take."""


NOTHING = SimpleNamespace(rotary_write=_nothing, attend=_nothing, rms_norm=_nothing, glu=_nothing)


@dataclass(frozen=True)
class Grid:
    """frames: measured of ours, or as many as `seconds` allow; peer_frames: of slow ones, and at least.

    replays: of a forward that is timed. What a forward is made of is looked at for the first prompt alone.
    """

    tokens: Sequence[int]
    prompts: Sequence[int]
    frames: int
    peer_frames: int
    seconds: float = 0.8
    replays: int = 30

    def cells(self) -> dict[str, tuple[int, int]]:
        """(K, L) by name."""
        grid = [(tokens, length) for length in self.prompts for tokens in self.tokens]
        return {f"K {tokens}, L {length}": (tokens, length) for tokens, length in grid}

    def counts(self) -> dict[str, Any]:
        """Sample sizes, for the reader of the figures."""
        return {
            "frames": f"ours: {self.seconds} s, {self.peer_frames} to {self.frames}; the row says how many",
            "peer_frames": self.peer_frames,
            "replays": self.replays,
            "path": "ours: embeddings in, tokens out, requests through the engine's scheduler",
            "p99": "of less than a hundred frames, nearly the slowest of them",
            "seeds": "weights 0, prompts L",
        }


class Bench:
    """All systems over one model."""

    def __init__(self, model: OpenVLA, grid: Grid) -> None:
        self.model, self.grid = model, grid
        self.device, self.dtype = model.device, model.language_model.model.dtype
        self.forward = self._packed()
        self.peer = HuggingFace(model)

    def measure(self, cell: tuple[int, int]) -> dict[str, Any]:
        """The rows of all systems for K and L, and the times of our forwards."""
        return {"forwards": [self.forwards(*cell)], "rows": list(self.rows(*cell))}

    def rows(self, tokens: int, length: int) -> Iterator[dict[str, Any]]:
        """One row for each system; a failed one has the reason under `none` instead of figures."""
        generator = torch.Generator(self.device).manual_seed(length)
        shape = 1, length, self.model.config.prefix.width
        prompts = [
            torch.randn(shape, generator=generator, device=self.device).to(self.dtype) for _ in range(PROMPTS)
        ]
        grid, rates_hz = self.grid, dict[str, float]()
        # The other systems' tokens are compared with theirs, so they run first.
        alone = self._frames(prompts, tokens, grid.frames, SEQUENTIAL)
        eager = self._peer(prompts, tokens, graph=False)
        ours, truths = _by_prompt(alone[1]), _by_prompt(eager[1])
        right = [self._settled(prompt, ours[index]) for index, prompt in enumerate(prompts)]

        systems: dict[str, Callable[[], tuple[Window, list[Finished]]]] = {
            "HF eager": lambda: eager,
            "sequential": lambda: alone,
            "naive pipe": lambda: self._frames(prompts, tokens, grid.peer_frames, PIPELINED, forward=False),
            "pipelined": lambda: self._frames(prompts, tokens, grid.frames, PIPELINED),
        }
        for part in ACCEPTANCE:
            drafts = [_draft(right[index], part, self.model.config.vocab) for index in range(PROMPTS)]
            name = f"speculative {part:.0%}"
            ours_frames = partial(self._frames, prompts, tokens, grid.frames, SPECULATIVE, drafts=drafts)
            systems[name], systems[f"{name}, fresh"] = partial(ours_frames, prefer=RATE), ours_frames
        # Last, because a failed capture may leave the device unusable.
        systems["HF, one graph"] = partial(self._peer, prompts, tokens, graph=True)
        for name, run in systems.items():
            row: dict[str, Any] = {"system": name, "tokens": tokens, "prompt": length}
            try:
                window, finished = run()
            except (RuntimeError, TypeError, AttributeError) as error:  # of another transformers, say
                yield {**row, "none": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
                continue
            rates_hz[name] = len(finished) / window.elapsed_s
            yield {
                **row,
                "frames": len(finished),
                "frames_s": round(rates_hz[name], 2),
                **window.ages(),
                "over_hf": _ratio(rates_hz, name, "HF eager"),
                "over_sequential": _ratio(rates_hz, name, "sequential"),
                "accepted": round(sum(result.accepted for result in finished) / len(finished), 2),
                "tokens_equal": equal_part(
                    [result.tokens for result in finished],
                    [ours[result.frame % PROMPTS] for result in finished],
                ),
                "hf_tokens_equal": equal_part(
                    [result.tokens for result in finished],
                    [truths[result.frame % PROMPTS] for result in finished],
                ),
                "memory_gb": window.memory_gb,
                **window.energy(len(finished)),
            }

    def forwards(self, tokens: int, length: int) -> dict[str, Any]:
        """Milliseconds of a packed forward and its parts, of the forwards a mode is chosen by, and of a shift
        that is not done."""
        measured: dict[str, Any] = {"tokens": tokens, "prompt": length}
        measured["prefill_ms"] = self._forward_ms(tokens, length, 0, 0)
        if tokens == 1:
            return measured
        measured["drafted_ms"] = self._forward_ms(tokens, length, 0, tokens - 1)
        measured["decode_ms"] = self._forward_ms(tokens, length, 1, None)
        measured["packed_ms"] = self._forward_ms(tokens, length, tokens - 1, 0)
        pool = self._pool(tokens, length)
        measured["shift_ms"] = median_ms(partial(_shift, pool), self.device, 5)["p50_ms"]
        if length == self.grid.prompts[0]:
            whole = kernels_for(self.device)
            variants = {f"by_{block_m}": self._packed(block_m=block_m) for block_m in (16, 64)}
            variants["to_rows"] = self._packed(kernels=Kernels(NOTHING, whole.rows))
            variants["to_products"] = self._packed(kernels=Kernels(NOTHING, NOTHING))
            for name, other in variants.items():
                measured[f"packed_{name}_ms"] = self._forward_ms(tokens, length, tokens - 1, 0, other)
        return measured

    def _packed(self, **changed: Any) -> PackedForward:
        stack, sizes = self.model.language_model.model, self.model.config.prefix
        return PackedForward(stack, sizes, max(self.grid.prompts) + max(self.grid.tokens), **changed)

    def _forward_ms(
        self, tokens: int, length: int, riders: int, drafted: int | None, forward: PackedForward | None = None
    ) -> float:
        """The median of replays, with a new frame and its draft (None = without) and so many riders.

        forward: another one than ours, of which only what is timed is made.
        """
        pool, width = self._pool(tokens, length), self.model.config.prefix.width

        def rows(count: int) -> Tensor:
            return torch.randn(1, count, width, device=self.device).to(self.dtype)

        segments = []
        for slot, length_before in enumerate(range(length, length + riders)):
            segments.append(
                Segment(
                    rows(1),
                    (pool.span(slot, 0, length_before),),
                    out=pool.span(slot, length_before, length_before + 1),
                )
            )
        if drafted is not None:
            new = length + drafted
            segments.append(Segment(rows(new), causal=True, out=pool.span(riders, 0, new)))
        packed = self.forward if forward is None else forward
        packed(segments)
        assert packed.last is not None
        return median_ms(packed.last.run, self.device, self.grid.replays)["p50_ms"]

    def _pool(self, tokens: int, length: int) -> KVPool:
        return KVPool(self.model.config.prefix, tokens, length + tokens, self.device, self.dtype)

    def _frames(
        self,
        prompts: Sequence[Tensor],
        tokens: int,
        frames: int,
        mode: str,
        prefer: str = FRESHNESS,
        forward: bool = True,
        drafts: Sequence[tuple[int, ...]] = (),
    ) -> tuple[Window, list[Finished]]:
        """Frames, of which those that fill the pipeline do not count. mode, prefer: see policies.tokens."""
        packed = self.forward if forward else None
        language = Language(self.model, prompts, tokens, mode, prefer, packed, drafts)
        window, finished = Window(self.device), list[Finished]()

        def finish(one: Finished, age_s: float) -> None:
            finished.append(one)
            window.ages_s.append(age_s)

        warm = PROMPTS if mode == SEQUENTIAL else tokens + 2
        for number in range(warm + frames):
            if number == warm:
                finished.clear()
                window = Window(self.device).__enter__()
            if number >= warm + self.grid.peer_frames and window.open_s > self.grid.seconds:
                break
            language.frame(number, finish)
        window.__exit__()
        return window, finished

    def _settled(self, prompt: Tensor, draft: tuple[int, ...]) -> tuple[int, ...]:
        """The draft that a verifying forward agrees with, because it may round differently than decodes
        do."""
        for _ in range(3):
            arguments = [prompt], len(draft), SPECULATIVE, FRESHNESS, self.forward, [draft]
            draft = Language(self.model, *arguments).once().tokens
        return draft

    def _peer(self, prompts: Sequence[Tensor], tokens: int, graph: bool) -> tuple[Window, list[Finished]]:
        window, finished = Window(self.device), list[Finished]()
        prompt, result = prompts[0].clone(), torch.zeros(tokens, dtype=torch.int64, device=self.device)
        body = Body(lambda: result.copy_(self.peer.frame(prompt, tokens)), self.device, capture=graph)
        for number in range(-1, self.grid.peer_frames):
            if number == 0:
                window, finished = Window(self.device).__enter__(), []
            begin = time.perf_counter()
            prompt.copy_(prompts[number % PROMPTS])
            body.run()
            finished.append(Finished(number, tuple(result.tolist()), 0))
            window.ages_s.append(time.perf_counter() - begin)
        window.__exit__()
        return window, finished


def _by_prompt(finished: Sequence[Finished]) -> dict[int, tuple[int, ...]]:
    return {result.frame % PROMPTS: result.tokens for result in finished}


def _ratio(rates: dict[str, float], name: str, other: str) -> float | None:
    return round(rates[name] / rates[other], 2) if other in rates else None


def drafted_right(part: float, tokens: int) -> int:
    """How many of a draft's K - 1 tokens are right, and should be accepted."""
    return round(part * (tokens - 1))


def _draft(said: tuple[int, ...], part: float, vocab: int) -> tuple[int, ...]:
    """A draft whose first part is right and whose next token is wrong."""
    right = drafted_right(part, len(said))
    if right == len(said) - 1:
        return said
    return (*said[:right], (said[right] + 1) % vocab, *said[right + 1 :])


def _shift(pool: KVPool) -> None:
    for memory in (pool.k, pool.v):
        for slot in range(pool.slots - 1, 0, -1):
            memory[slot].copy_(memory[slot - 1])
