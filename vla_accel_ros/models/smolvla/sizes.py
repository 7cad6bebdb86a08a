"""Infer a SmolVLA's sizes from the shapes of its tensors and lerobot's `config.json`.

lerobot saves the policy's settings and the name of the language model it was cut from, but not that model's
sizes. The tensors show them, except for the widths of heads, which are 64 in every published SmolVLM2 of 512
pixels. A setting that changes the computation and that no published policy uses is refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_accel_ros.models.checkpoints.fields import LEROBOT, LEROBOT_FIXED, check_fields, words
from vla_accel_ros.models.checkpoints.lerobot import lerobot_cameras
from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.inferred import Shapes, axes, siglip, stack, tensors_of, whole
from vla_accel_ros.models.smolvla.config import NORM_EPS, SmolVLAConfig

VLM = "model.vlm_with_expert.vlm.model."
VISION, TEXT = VLM + "vision_model.", VLM + "text_model."
EXPERT = "model.vlm_with_expert.lm_expert."
HEAD_DIM = 64
FIELDS = LEROBOT | words("""
    resize_imgs_with_padding vlm_model_name load_vlm_weights attention_mode prefix_length pad_language_to
    num_expert_layers num_vlm_layers self_attn_every_n_layers expert_width_multiplier
""")
FIXED: Mapping[str, Any] = {**LEROBOT_FIXED, "add_image_special_tokens": False}


@tensors_of("the folder that lerobot saved a SmolVLA in")
def infer_smolvla(
    shapes: Shapes, data: Mapping[str, Any], head_dim: int = HEAD_DIM, vision_head_dim: int = HEAD_DIM
) -> SmolVLAConfig:
    """Return the sizes of the checkpoint with these tensors. data: lerobot's config.json.

    Raises ValueError if a tensor is missing or a setting is unknown.
    """
    check_settings(data)
    vision = siglip(shapes, VISION, vision_head_dim)
    _, joined = axes(shapes, VLM + "connector.modality_projection.proj.weight", 2)
    _check_resize(data, vision)
    return SmolVLAConfig(
        vision=vision,
        shuffle=round((joined / vision.width) ** 0.5),
        prefix=stack(LlamaConfig, shapes, TEXT, head_dim, norm_eps=NORM_EPS),
        expert=stack(LlamaConfig, shapes, EXPERT, head_dim, norm_eps=NORM_EPS),
        self_every=_self_every(data),
        vocab=axes(shapes, TEXT + "embed_tokens.weight", 2)[0],
        action_dim=axes(shapes, "model.action_in_proj.weight", 2)[1],
        state_dim=axes(shapes, "model.state_proj.weight", 2)[1],
        horizon=whole(data, "chunk_size"),
        max_prompt=whole(data, "tokenizer_max_length"),
        image_names=lerobot_cameras(data),
    )


def check_settings(data: Mapping[str, Any]) -> None:
    """Raise ValueError naming a field of lerobot's config.json that is unknown or not implemented."""
    check_fields(data, "", FIELDS, FIXED)


def _self_every(data: Mapping[str, Any]) -> int:
    mode = data.get("attention_mode", "cross_attn")
    if mode == "self_attn":
        return 1
    if mode != "cross_attn":
        raise ValueError(f"attention_mode is {mode!r}; use 'cross_attn' or 'self_attn'.")
    return whole(data, "self_attn_every_n_layers")


def _check_resize(data: Mapping[str, Any], vision: VisionConfig) -> None:
    side = vision.image_size
    if data.get("resize_imgs_with_padding") != [side, side]:
        raise ValueError(
            f"resize_imgs_with_padding is {data.get('resize_imgs_with_padding')!r}; the image tower takes "
            f"[{side}, {side}]."
        )
