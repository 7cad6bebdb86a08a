"""The grid of OxyGen (sections 4.2 to 4.6): denoising steps S, texts of N tokens, k of these a frame, and how
requests arrive.

A row is a cell. Frames a second count chunks of actions, actions a second what is in them. Beside ours stand
the same stages one request after another, plain torch likewise, and the bound that batching could reach at
best (each text cut off at k tokens, so that one alone is under way). Memory is the peak of weights and pools,
power and energy the whole GPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.tools.bench.pipeline.arrivals import arrivals
from vla_accel_ros.tools.bench.pipeline.measure import equal_part
from vla_accel_ros.tools.bench.pipeline.sharing import Isolated, Plain, Ran, Shared
from vla_accel_ros.tools.bench.subjects import Inputs, random_inputs, random_model, relative

OBSERVATIONS = 3
SHARE = 0.1
"""Of the action rate, which text may cost at most."""


@dataclass(frozen=True)
class Grid:
    """What is run. frames: measured for each cell, plain_frames for plain torch."""

    steps: Sequence[int]
    tokens: Sequence[int]
    per_frame: Sequence[int]
    arrivals: Sequence[str]
    frames: int
    plain_frames: int
    views: int = 2
    prompt: int = 20

    def cells(self) -> Iterable[tuple[int, int, int, str]]:
        """(S, N, k, arrivals); more tokens a frame than a text has are left out."""
        for steps in self.steps:
            for tokens in self.tokens:
                for k in self.per_frame:
                    for kind in self.arrivals:
                        if k <= tokens:
                            yield steps, tokens, k, kind


@dataclass
class Reference:
    """One request after another, for one S and N: by the same stages, and by plain torch."""

    isolated: Ran
    plain: Ran


def measure(
    config: PiConfig,
    grid: Grid,
    device: torch.device,
    dtype: torch.dtype,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Rows of cells; `beside`: the action rate with and without text in its slack; `parts_ms`: of a frame."""
    model = random_model(config, device).set_precision(dtype)
    inputs = [random_inputs(config, grid.views, grid.prompt, device, seed) for seed in range(OBSERVATIONS)]
    longest = max(grid.tokens)
    most = max(2 * -(-longest // min(grid.per_frame)) + 4, 8)
    shared = Shared(model, inputs, most, longest)
    shared.prepare(grid.steps[0], longest)
    references: dict[tuple[int, int], Reference] = {}
    rows = []
    for steps, tokens, k, kind in grid.cells():
        if (steps, tokens) not in references:
            references[steps, tokens] = _reference(shared, inputs, grid, steps, tokens)
        reference = references[steps, tokens]
        rows.append(_cell(shared, reference, config, grid, steps, tokens, k, kind))
        say(f"S {steps} N {tokens} k {k} {kind}: {rows[-1]['frames_s']} frames/s")
    beside: dict[str, Any] = {"steps": grid.steps[0], "tokens": longest, "texts": most}
    beside |= shared.beside(grid.frames * 2, grid.steps[0], longest, SHARE)
    return {"rows": rows, "beside": beside, "parts_ms": shared.parts_ms(grid.steps[0])}


def _reference(shared: Shared, inputs: Sequence[Inputs], grid: Grid, steps: int, tokens: int) -> Reference:
    isolated = Isolated(shared).run(max(OBSERVATIONS, grid.frames // 3), steps, tokens)
    plain = Plain(shared.model, inputs).run(max(OBSERVATIONS, grid.plain_frames), steps, tokens)
    return Reference(isolated, plain)


def _cell(
    shared: Shared, reference: Reference, config: PiConfig, grid: Grid, steps: int, tokens: int, k: int,
    kind: str,
) -> dict[str, Any]:  # fmt: skip
    warm = min(-(-tokens // k), 60) + 2
    frames = arrivals(kind, warm + grid.frames, tokens)
    ours = shared.run(frames, steps, k, warm)
    bound = shared.run(arrivals("uniform", 2 + grid.frames, k), steps, k, warm=2)
    rate = _rate(ours)
    isolated, plain = _rate(reference.isolated), _rate(reference.plain)
    truth = dict(reference.isolated.texts)
    pairs = [(text, truth[index][: len(text)]) for index, text in ours.texts]
    return {
        "steps": steps,
        "tokens": tokens,
        "per_frame": k,
        "arrivals": kind,
        "frames_s": round(rate, 2),
        "actions_s": round(rate * config.horizon, 1),
        "tokens_s": round(ours.tokens / ours.window.elapsed_s, 1),
        "batch": round(ours.tokens / max(1, ours.forwards), 2),
        "isolated_frames_s": round(isolated, 2),
        "isolated_tokens_s": round(isolated * tokens, 1),
        "plain_frames_s": round(plain, 2),
        "bound_frames_s": round(_rate(bound), 2),
        "over_isolated": round(rate / isolated, 2),
        "over_plain": round(rate / plain, 2),
        **ours.window.ages(),
        "memory_gb": ours.window.memory_gb,
        **ours.window.energy(ours.chunks),
        "isolated_memory_gb": reference.isolated.window.memory_gb,
        **{
            f"isolated_{name}": value
            for name, value in reference.isolated.window.energy(reference.isolated.chunks).items()
        },
        "texts": len(pairs),
        "tokens_equal": equal_part([text for text, _ in pairs], [want for _, want in pairs]),
        "plain_tokens_equal": equal_part(*_aligned(reference)),
        "actions_error": max(
            relative(ours.actions[index], reference.isolated.actions[index]) for index in ours.actions
        ),
        "plain_actions_error": max(
            relative(reference.isolated.actions[index], plain_actions)
            for index, plain_actions in reference.plain.actions.items()
        ),
    }


def _rate(ran: Ran) -> float:
    return ran.chunks / ran.window.elapsed_s


def _aligned(reference: Reference) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    isolated, plain = dict(reference.isolated.texts), dict(reference.plain.texts)
    both = sorted(isolated.keys() & plain.keys())
    return [isolated[index] for index in both], [plain[index] for index in both]
