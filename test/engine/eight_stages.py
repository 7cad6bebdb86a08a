"""A made-up family with all eight micro-requests, which nothing in the package knows.

Its network is pi0.5's, with small products of its own around it: the instruction's text, a video's latents
that are denoised before the prefix reads them, and a coarse chunk of one forward that the steps follow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from builders import make_policy
from torch import Tensor

from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest
from vla_accel_ros.models.network_policy import HostInputs
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Observation

TIMES = 3
"""Steps of the video."""


@dataclass(frozen=True)
class EightStages(Policy):
    """runs: how often each micro-request was computed. arm: its number of the embodiment, an input."""

    runs: Counter[str] = field(default_factory=Counter)
    arm: int = 1

    @property
    def chain(self) -> Chain:
        config = self.config
        width, horizon, dims = config.prefix.width, config.horizon, config.action_dim
        seen = Leaf("seen", (len(config.image_names) * config.image_tokens, width))
        pictures = len(config.image_names), width
        latents, video, text = Leaf("latents", pictures), Leaf("video", pictures), Leaf("text", (width,))
        hidden, coarse = Leaf("hidden", (width,)), Leaf("coarse", (1, horizon, dims))
        return Chain(
            (
                MicroRequest("text_encode", ("words",), (text,), kept="instruction"),
                MicroRequest("encode", ("pixels",), (seen,)),
                MicroRequest("vae_encode", ("pixels",), (latents,)),
                MicroRequest(
                    "video_denoise", ("latents", "video", "text", "index", "arm"), (video,), times=TIMES
                ),
                MicroRequest("prefill", ("seen", "video", "words"), (Leaf("kv"), hidden)),
                MicroRequest("forward", ("video", "text", "state", "arm"), (coarse,), kept="chunk"),
                MicroRequest("denoise", ("x", "t", "coarse", "kv"), (Leaf("actions"),), kept="step"),
                MicroRequest("decode", ("kv", "hidden"), (Leaf("answer"),), kept="step"),
            ),
            inputs=(Leaf("arm", (1,)),),
            capturable=True,
        )

    def host_inputs(self, observation: Observation) -> HostInputs:
        return replace(super().host_inputs(observation), more={"arm": torch.tensor([float(self.arm)])})

    def text_encode(self, words: Tensor) -> dict[str, Tensor]:
        self.runs["text_encode"] += 1
        return {"text": self.model.embed_tokens(words).mean(dim=0)}

    def encode(self, pixels: Tensor) -> dict[str, Tensor]:
        self.runs["encode"] += 1
        return super().encode(pixels)

    def vae_encode(self, pixels: Tensor) -> dict[str, Tensor]:
        self.runs["vae_encode"] += 1
        return {"latents": pixels.flatten(1)[:, : self.config.prefix.width]}

    def video_denoise(
        self, latents: Tensor, video: Tensor | None, text: Tensor, index: int, arm: Tensor
    ) -> dict[str, Tensor]:
        self.runs["video_denoise"] += 1
        before = latents if video is None else video
        return {"video": torch.tanh(before * (1.0 + index) + text + 0.1 * arm)}

    def prefill(  # type: ignore[override]
        self, seen: Tensor, video: Tensor, words: Tensor
    ) -> dict[str, Any]:
        self.runs["prefill"] += 1
        return super().prefill(seen + video.mean(dim=0), words)

    def forward(self, video: Tensor, text: Tensor, state: Tensor, arm: Tensor) -> dict[str, Tensor]:
        self.runs["forward"] += 1
        shape = 1, self.config.horizon, self.config.action_dim
        rows = torch.outer((video.mean(dim=0) + text)[: shape[1]], state)
        return {"coarse": (rows * arm).tanh().view(shape)}

    def denoise(  # type: ignore[override]
        self, x: Tensor, t: Tensor, coarse: Tensor, kv: KV
    ) -> Tensor:
        self.runs["denoise"] += 1
        return self.model.velocity(x, t, None, kv) + (x - coarse)


class Unknown(Pi):
    """A network that the engine has no kernels for."""


def make_eight(**changes: Any) -> EightStages:
    """Its prompt has no state, so that an instruction has the same words in every frame."""
    policy = make_policy("pi05")
    policy.model.__class__ = Unknown
    return EightStages(**{**vars(policy), "prompt_state": "none", **changes})
