"""Infer the sizes of a mimic-video network from the shapes of its tensors, by our names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vla_accel_ros.models.config import TRAINED_AS
from vla_accel_ros.models.inferred import Shapes, axes, depth, heads
from vla_accel_ros.models.mimic_video.config import (
    MIMIC_VIDEO,
    PATCH,
    DiTConfig,
    MimicVideoConfig,
    Settings,
    VAEConfig,
)
from vla_accel_ros.models.mimic_video.vae import MEAN
from vla_accel_ros.models.mimic_video.video import MASKS
from vla_accel_ros.models.text.t5 import infer_t5

TEXT, VAE, VIDEO, DECODER = "text_encoder.", "vae.", "video.", "decoder."
STAGE = re.compile(r"vae\.encoder\.downsamples\.(\d+)\.(residual\.6|resample\.1|time_conv)\.weight$")


def infer_mimic_video(shapes: Shapes, text: Mapping[str, Any], layer: int | None, said: str) -> MimicVideoConfig:
    """Return the sizes of the checkpoint with these tensors.

    text: config.json of the text encoder. layer: by the name of the decoder's file, or None. said: settings
    of the training, see Settings.parse; those of the published networks need not be said.
    Raises ValueError if a tensor is missing, a setting is unknown, or must be said.
    """
    try:
        video, decoder = _stack(shapes, VIDEO), _stack(shapes, DECODER)
        published = MIMIC_VIDEO.video
        if not said and (video.width, video.depth) != (published.width, published.depth):
            raise ValueError(
                f"no file of a mimic-video says the settings of its training, and with {video.depth} blocks "
                f"of width {video.width} it is not the published one; give {TRAINED_AS} (--as on the command "
                "line), such as 'image_size=480x640 xattn_layer_idx=20', as they were."
            )
        *hidden, _ = _embedder(shapes, "action_embedder")
        channels = axes(shapes, f"{VAE}conv1.weight", 5)[0] // 2
        if channels != len(MEAN):
            raise ValueError(f"{VAE}conv1 has {channels} channels; those of {len(MEAN)} are known.")
        inner = axes(shapes, f"{VIDEO}x_embedder.proj.1.weight", 2)[1]
        if inner != (channels + MASKS) * PATCH * PATCH:
            raise ValueError(
                f"{VIDEO}x_embedder reads {inner} numbers, not {channels} + {MASKS} channels of patches of "
                f"{PATCH} x {PATCH}; give a Video2World network of Cosmos-Predict2."
            )
        return MimicVideoConfig(
            text=infer_t5({n.removeprefix(TEXT): s for n, s in shapes.items() if n.startswith(TEXT)}, text),
            vae=_vae(shapes, channels),
            video=video,
            decoder=decoder,
            hidden=tuple(hidden),
            action_dim=axes(shapes, f"{DECODER}final_layer.linear.weight", 2)[0],
            state_dim=axes(shapes, f"{DECODER}obs_embedder.layers.0.weight", 2)[1],
            horizon=axes(shapes, f"{DECODER}pos_embedding", 3)[1] - 1,
            settings=Settings.parse(said if layer is None else f"xattn_layer_idx={layer} {said}"),
        )
    except KeyError as error:
        raise ValueError(
            f"the weights have no tensor {error.args[0]}, so they do not tell the model's sizes; copy the "
            "file again."
        ) from error


def _stack(shapes: Shapes, root: str) -> DiTConfig:
    first = f"{root}blocks.0."
    inner, width = axes(shapes, f"{first}self_attn.q_proj.weight", 2)
    (head_dim,) = axes(shapes, f"{first}self_attn.q_norm.weight", 1)
    return DiTConfig(
        width=width,
        depth=depth(shapes, f"{root}blocks."),
        heads=heads(inner, head_dim, first),
        head_dim=head_dim,
        mlp=axes(shapes, f"{first}mlp.layer1.weight", 2)[0],
        context=axes(shapes, f"{first}cross_attn.k_proj.weight", 2)[1],
        rank=axes(shapes, f"{first}adaln_modulation_mlp.1.weight", 2)[0],
    )


def _embedder(shapes: Shapes, name: str) -> list[int]:
    """Output widths of the layers of an embedder."""
    root = f"{DECODER}{name}.layers."
    places = range(0, depth(shapes, root), 2)
    return [axes(shapes, f"{root}{place}.weight", 2)[0] for place in places]


def _vae(shapes: Shapes, channels: int) -> VAEConfig:
    """Stages are blocks of one width, with a step between two of them."""
    parts = {(int(m[1]), m[2]): shape for n, shape in shapes.items() if (m := STAGE.match(n))}
    widths, in_time = [axes(shapes, f"{VAE}encoder.conv1.weight", 5)[0]], list[bool]()
    blocks = [shape[0] for (_, part), shape in sorted(parts.items()) if part == "residual.6"]
    steps = [place for place, part in sorted(parts) if part == "resample.1"]
    in_time = [(place, "time_conv") in parts for place in steps]
    stages = len(steps) + 1
    return VAEConfig((*widths, *blocks[:: max(1, len(blocks) // stages)]), len(blocks) // stages, tuple(in_time), channels)
