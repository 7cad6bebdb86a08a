"""What families without stages of kernels compute: traces of their plain modules (planning.trace), as their
plain stages run them. Frames and chunks of several robots are computed one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vla_accel_ros.models.fastwam.config import FastWAMConfig
from vla_accel_ros.models.fastwam.model import FastWAM
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.groot.model import Groot
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.mimic_video.config import CHANNELS, MimicVideoConfig
from vla_accel_ros.models.mimic_video.model import MimicVideo
from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.model import OpenVLAOFT
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.models.xvla.model import XVLA
from vla_accel_ros.planning.trace import Call, trace
from vla_accel_ros.planning.work import Work


def calls(model: Any, sizes: Any, work: Work) -> dict[str, tuple[Call, ...]]:
    """Return the operations of encode, prefill and one step of denoise, or forward, for one robot; of words
    if they are encoded by themselves."""
    if isinstance(sizes, OpenVLAOFTConfig):
        stages = _openvla_oft(model, sizes, work)
    elif isinstance(sizes, MimicVideoConfig):
        stages = _mimic_video(model, sizes, work)
    elif isinstance(sizes, FastWAMConfig):
        stages = _fastwam(model, sizes, work)
    else:
        stages = _xvla(model, sizes, work) if isinstance(sizes, XVLAConfig) else _groot(model, sizes, work)
    return {name: trace(model, run) for name, run in stages.items()}


def _xvla(model: XVLA, sizes: XVLAConfig, work: Work) -> dict[str, Callable[[], object]]:
    """A prompt has always max_prompt ids, and an absent view rows of zeros."""
    half = partial(torch.empty, dtype=torch.bfloat16)
    tokens, width, horizon = sizes.image_tokens, sizes.text.width, work.chunk or sizes.horizon
    domain = torch.zeros(1, dtype=torch.int64)

    def prefill() -> None:
        ids = torch.zeros(1, sizes.max_prompt, dtype=torch.int64)
        model.transformer.rows(*model.prefix(half(1, work.views, tokens, width), ids), domain)

    def denoise() -> None:
        x, state = torch.empty(1, horizon, sizes.action_dim), torch.empty(1, sizes.state_dim)
        rows = half(1, sizes.prefix_rows + sizes.prompts, sizes.width)
        model.denoise(x, torch.empty(1), state, rows, domain)

    def encode() -> None:
        model.encode(half(work.views, 3, sizes.image_size, sizes.image_size))

    return {"encode": encode, "prefill": prefill, "denoise": denoise}


def _mimic_video(model: MimicVideo, sizes: MimicVideoConfig, work: Work) -> dict[str, Callable[[], object]]:
    """prefill: the video, and the keys and values that a chunk reads of it. A prompt is encoded once for its
    frames, so that is no part of them."""
    s, half = sizes.settings, partial(torch.empty, dtype=torch.bfloat16)

    def encode() -> None:
        model.vae(half(s.img_horizon, 3, s.height, s.width))

    def prefill() -> None:
        latents, text = half(CHANNELS, s.observed, *s.latent), half(work.prompt, sizes.text.width)
        video: dict[str, Any] = {}
        for index in range(1 + s.stop_after_step):
            video = model.video.step(latents, text, index, video.get("noisy"), video.get("clean"))
        model.decoder.context(video["features"])

    def denoise() -> None:
        d, rows = sizes.decoder, (1, s.rows, sizes.decoder.heads, sizes.decoder.head_dim)
        x, state = torch.empty(1, work.chunk or sizes.horizon, sizes.action_dim), half(1, sizes.state_dim)
        context = [(half(*rows), half(*rows)) for _ in range(d.depth)]
        model.decoder(x, torch.empty(1), torch.empty(1), state, context)

    return {"encode": encode, "prefill": prefill, "denoise": denoise}


def _fastwam(model: FastWAM, sizes: FastWAMConfig, work: Work) -> dict[str, Callable[[], object]]:
    """All cameras are one picture, so work.views is not used. Words are encoded once an instruction."""
    half = partial(torch.empty, dtype=torch.bfloat16)
    micros = sizes.chain.micro_requests
    leaves = {leaf.name: leaf.shape for micro in micros for leaf in micro.leaves}

    def text_encode() -> None:
        model.texts(torch.zeros(work.prompt, dtype=torch.int64))

    def encode() -> None:
        model.vae(torch.empty(1, 3, sizes.image_height, sizes.image_width))

    def prefill() -> None:
        state = torch.empty(sizes.state_dim) if sizes.state_dim else None
        model.prefix(torch.empty(leaves["latents"]), half(leaves["video_text"]), state)

    def denoise() -> None:
        x = torch.empty(1, work.chunk or sizes.horizon, sizes.action_dim)
        kept = (half(1, *leaves[name]) for name in ("action_text", "video", "joints"))
        model.velocity(x, torch.empty(1), *kept)

    return {"text_encode": text_encode, "encode": encode, "prefill": prefill, "denoise": denoise}


def _openvla_oft(model: OpenVLAOFT, sizes: OpenVLAOFTConfig, work: Work) -> dict[str, Callable[[], object]]:
    """A chunk is one pass, so work.steps is not used."""
    side, half = sizes.dino.image_size, partial(torch.empty, dtype=torch.bfloat16)

    def encode() -> None:
        film = [half(leaf.shape) for micro in sizes.chain.of_frame[:-1] for leaf in micro.leaves]
        model.encode(half(work.views, 6, side, side), film)

    def forward() -> None:
        seen = half(work.views * sizes.dino.tokens, sizes.prefix.width)
        model.chunk(seen, torch.zeros(work.prompt, dtype=torch.int64), half(sizes.state_dim))

    return {"encode": encode, "forward": forward}


def _groot(model: Groot, sizes: GrootConfig, work: Work) -> dict[str, Callable[[], object]]:
    """An image has the most tokens that it may have; the prompt has those of its text and special ones."""
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

    return {"encode": encode, "prefill": prefill, "denoise": denoise}
