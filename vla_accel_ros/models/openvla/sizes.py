"""Infer the sizes of a published OpenVLA folder from its config.json and its tensors.

Hugging Face writes only what differs from its defaults, so openvla-7b's folder does not list Llama's layers
or heads, nor the towers' sizes. A field in the config takes precedence, so that tensors that differ are
reported; otherwise the shapes decide. Shapes do not show the number of heads, nor the depth of a truncated
file: those are known for the published widths and required in the config otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.inferred import Shapes, axes, depth
from vla_accel_ros.models.openvla.config import OPENVLA_7B, SPACE_TOKEN, OpenVLAConfig

LLAMA = "language_model.model."
DINO = "vision_backbone.featurizer."
SIGLIP = "vision_backbone.fused_featurizer."
PUBLISHED = {config.width: config for config in (OPENVLA_7B.dino, OPENVLA_7B.siglip)}

# Settings that this code implements; any other value is refused.
FIXED = {
    "image_resize_strategy": "resize-naive",
    "use_fused_vision_backbone": True,
    "arch_specifier": "no-align+fused-gelu-mlp",
    "timm_override_act_layers": [None, None],
}
FIXED_TEXT = {
    "model_type": "llama",
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


def infer_openvla(shapes: Shapes, data: Mapping[str, Any]) -> OpenVLAConfig:
    """Return the sizes of the folder with these tensors. data: its config.json.

    Raises ValueError naming the field if the config asks for another network, or a size cannot be inferred.
    """
    text = data.get("text_config", {})
    if not isinstance(text, dict):
        raise ValueError(f"text_config holds a {type(text).__name__}; it must hold an object.")
    _only(data, FIXED, "")
    _only(text, FIXED_TEXT, "text_config.")
    backbone = data.get("llm_backbone_id", "llama2-7b-pure")
    if not str(backbone).endswith("-pure"):
        raise ValueError(f"llm_backbone_id is {backbone!r}; only the prompt of '...-pure' is known.")
    try:
        vocab = _whole(text, "text_config.vocab_size", axes(shapes, LLAMA + "embed_tokens.weight", 2)[0])
        action_vocab = vocab - _whole(data, "pad_to_multiple_of", 64, least=0)
        sizes = data.get("image_sizes")
        dino_size, siglip_size = sizes if isinstance(sizes, list) and len(sizes) == 2 else (None, None)
        return OpenVLAConfig(
            dino=_tower(shapes, DINO, dino_size),
            siglip=_tower(shapes, SIGLIP, siglip_size),
            registers=axes(shapes, DINO + "reg_token", 3)[1],
            prefix=_llama(shapes, text),
            vocab=vocab,
            action_vocab=action_vocab,
            bins=_whole(data, "n_action_bins", 256, least=2),
            space_token=SPACE_TOKEN if action_vocab > SPACE_TOKEN else None,
        )
    except KeyError as error:
        raise ValueError(
            f"the weights have no tensor {error.args[0]}, so they do not tell the model's sizes; give the "
            "folder of an OpenVLA with the DINOv2 and SigLIP towers."
        ) from error


def _llama(shapes: Shapes, text: Mapping[str, Any]) -> LlamaConfig:
    layer = LLAMA + "layers.0."
    rows, width = axes(shapes, layer + "self_attn.q_proj.weight", 2)
    published = OPENVLA_7B.prefix if width == OPENVLA_7B.prefix.width else None
    heads = _whole(text, "text_config.num_attention_heads", published.heads if published else None)
    epsilon = text.get("rms_norm_eps", LlamaConfig.norm_eps)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"text_config.rms_norm_eps is {epsilon!r}; it must be between 0 and 1.")
    return LlamaConfig(
        width=_whole(text, "text_config.hidden_size", width),
        depth=_whole(
            text,
            "text_config.num_hidden_layers",
            published.depth if published else depth(shapes, LLAMA + "layers."),
        ),
        mlp=_whole(text, "text_config.intermediate_size", axes(shapes, layer + "mlp.gate_proj.weight", 2)[0]),
        heads=heads,
        kv_heads=_whole(text, "text_config.num_key_value_heads", heads),
        head_dim=_whole(text, "text_config.head_dim", rows // heads),
        norm_eps=epsilon,
    )


def _tower(shapes: Shapes, root: str, image_size: Any) -> VisionConfig:
    width, _, patch, _ = axes(shapes, root + "patch_embed.proj.weight", 4)
    published = PUBLISHED.get(width)
    if published is None:
        raise ValueError(
            f"a tower of width {width} does not tell the number of heads; add the field "
            '"vla_accel_ros" with all sizes.'
        )
    side = patch * round(axes(shapes, root + "pos_embed", 3)[1] ** 0.5)
    return VisionConfig(
        width=width,
        depth=published.depth,
        mlp=axes(shapes, root + "blocks.0.mlp.fc1.weight", 2)[0],
        heads=published.heads,
        image_size=side if image_size is None else image_size,
        patch=patch,
    )


def _whole(data: Mapping[str, Any], field: str, default: int | None, least: int = 1) -> int:
    """Return the whole number under the last part of `field`."""
    value = data.get(field.rpartition(".")[2])
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{field} is {value!r}; it must be a whole number of at least {least}.")
    return value


def _only(data: Mapping[str, Any], fixed: Mapping[str, Any], where: str) -> None:
    for field, value in fixed.items():
        if data.get(field, value) != value:
            raise ValueError(f"{where}{field} is {data[field]!r}; only {value!r} is known.")
