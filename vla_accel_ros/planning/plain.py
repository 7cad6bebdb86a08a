"""What families without stages of kernels compute: traces (planning.trace) of the micro-requests that they
declare, each by the policy's own method on what the ones before it left, as plain stages compute them. Frames
and chunks of several robots are computed one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from vla_accel_ros.models.fastwam.config import FastWAMConfig
from vla_accel_ros.models.fastwam.policy import FastWAMPolicy
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.groot.policy import GrootPolicy
from vla_accel_ros.models.micro_requests import DENOISE, INDEX, PIXELS, STATE, WORDS, MicroRequest
from vla_accel_ros.models.mimic_video.config import MimicVideoConfig
from vla_accel_ros.models.mimic_video.policy import MimicVideoPolicy
from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.policy import OpenVLAOFTPolicy
from vla_accel_ros.models.policies import computed
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.models.xvla.policy import XVLAPolicy
from vla_accel_ros.planning.trace import Call, trace
from vla_accel_ros.planning.work import PlainSizes, Work

PART_OF = {"vae_encode": "encode", "video_denoise": "prefill"}
"""Stages that a plan does not tell apart from another."""


class _Groot(GrootPolicy):
    """Without a tokenizer: each image comes after the prompt's first word."""

    def _breaks(self, images: int) -> tuple[int, ...]:
        return (1,) * images


POLICIES: Mapping[type, Any] = {
    OpenVLAOFTConfig: OpenVLAOFTPolicy,
    GrootConfig: _Groot,
    XVLAConfig: XVLAPolicy,
    MimicVideoConfig: MimicVideoPolicy,
    FastWAMConfig: FastWAMPolicy,
}


def calls(model: Any, sizes: PlainSizes, work: Work) -> dict[str, tuple[Call, ...]]:
    """Return the operations of each stage of a plan, for one robot: of a frame, of one step of denoise or
    forward, and of words if they are encoded by themselves."""
    policy, new = _bare(model, sizes), partial(torch.empty, device="meta")
    words = sizes.max_prompt if isinstance(sizes, XVLAConfig) else work.prompt  # it fills prompts up
    x, t = new(1, work.chunk or sizes.horizon, sizes.action_dim), new(1)
    inputs = {PIXELS: new(_pixels(sizes, work.views)), WORDS: new(words, dtype=torch.int64)}
    inputs |= {leaf.name: new(leaf.shape, dtype=torch.int64) for leaf in sizes.chain.inputs}
    inputs |= {STATE: new(sizes.state_dim), "x": x, "noise": x, "t": t, "dt": t}
    stages: dict[str, tuple[Call, ...]] = {}
    for micro in sizes.chain.micro_requests:
        name = PART_OF.get(micro.stage, micro.stage)
        stages[name] = stages.get(name, ()) + trace(model, partial(_compute, policy, micro, inputs))
    return stages


def _compute(policy: Any, micro: MicroRequest, inputs: dict[str, Any]) -> None:
    """Compute a micro-request, and add what it leaves to the inputs."""
    if micro.stage == DENOISE:
        batch = {**inputs, STATE: inputs[STATE][None]}
        policy.denoise(**{name: batch[name] for name in micro.reads})
        return
    for index in range(micro.times):
        inputs |= computed(policy, micro, {**inputs, INDEX: index})


def _bare(model: Any, sizes: PlainSizes) -> Any:
    """A policy that computes micro-requests, without the words, units and cameras of any robot."""
    policy = object.__new__(POLICIES[type(sizes)])
    object.__setattr__(policy, "model", model)
    if isinstance(sizes, GrootConfig):
        geometry = SimpleNamespace(side=_side(sizes))
        settings = SimpleNamespace(geometry=geometry, cameras=sizes.image_names)
        object.__setattr__(policy, "settings", settings)
    return policy


def _pixels(sizes: PlainSizes, views: int) -> tuple[int, ...]:
    """The shape of a frame's pixels. An image of GR00T has the most tokens that it may have."""
    if isinstance(sizes, MimicVideoConfig):
        return sizes.settings.img_horizon, 3, sizes.settings.height, sizes.settings.width
    if isinstance(sizes, FastWAMConfig):
        return 1, 3, sizes.image_height, sizes.image_width
    if isinstance(sizes, OpenVLAOFTConfig):
        return views, 6, sizes.dino.image_size, sizes.dino.image_size
    side = sizes.image_size if isinstance(sizes, XVLAConfig) else _side(sizes)
    return views, 3, side, side


def _side(sizes: GrootConfig) -> int:
    return sizes.vision.patch * sizes.merge * math.isqrt(sizes.image_tokens)
