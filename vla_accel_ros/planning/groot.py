"""What a GR00T computes in a stage: traces of its plain modules (planning.trace), as its plain stages run
them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.groot.model import Groot
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.planning.trace import Call, trace
from vla_accel_ros.planning.work import Work


def calls(model: Groot, sizes: GrootConfig, work: Work) -> dict[str, tuple[Call, ...]]:
    """Return the operations of encode, prefill and one step of denoise, for one robot. An image has the most
    tokens that it may have; the prompt has those of its text and special ones."""
    tokens, width = work.views * sizes.image_tokens + work.prompt, sizes.text.width
    half = partial(torch.empty, dtype=torch.bfloat16)

    def encode() -> None:
        side = sizes.vision.image_size
        block = sizes.vision.patch * sizes.merge
        shape = (block, block * sizes.image_tokens) if sizes.taps else (side, side)
        model.encode(half(work.views, 3, *shape))

    def prefill() -> None:
        image = half(1, sizes.image_tokens, width)
        taps = half(len(sizes.taps), 1, sizes.image_tokens, width)
        words, breaks = torch.zeros(work.prompt, dtype=torch.int64), (1,) * work.views
        prompt = model.embed(words, [image] * work.views, [taps] * work.views, breaks)
        model.prefix(model.features(prompt))

    def denoise() -> None:
        g, horizon = sizes.prefix, work.chunk or sizes.horizon
        kv = KV(*(half(g.depth, 1, g.kv_heads, tokens, g.head_dim) for _ in range(2)))
        image = torch.zeros(1, tokens, dtype=torch.bool) if sizes.alternates else None
        x, state = torch.empty(1, horizon, sizes.action_dim), torch.empty(1, sizes.state_dim)
        model.velocity(x, torch.empty(1), state, kv, torch.zeros(1, dtype=torch.int64), image)

    stages: dict[str, Any] = {"encode": encode, "prefill": prefill, "denoise": denoise}
    return {name: trace(model, run) for name, run in stages.items()}
