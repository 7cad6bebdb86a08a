"""Infer an X-VLA's sizes from the shapes of its tensors and lerobot's `config.json`.

`florence_config` is Microsoft's in folders of lerobot up to 0.4.4 and transformers' own in later ones; what
tensors show is read from them, and what none shows has the same name in both. A setting that changes the
computation and that no published policy uses is refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_accel_ros.models.checkpoints.fields import LEROBOT, LEROBOT_FIXED, check_fields, words
from vla_accel_ros.models.checkpoints.lerobot import features_of, lerobot_cameras
from vla_accel_ros.models.inferred import Shapes, axes, depth, tensors_of, whole
from vla_accel_ros.models.openvla.sizes import GENERATION, TRANSFORMERS
from vla_accel_ros.models.xvla.config import CONVOLUTIONS, BartConfig, DaViTConfig, XVLAConfig
from vla_accel_ros.models.xvla.grippers import GRIPPERS
from vla_accel_ros.models.xvla.model import UNUSED_POSITIONS

TOWER, TEXT = "vlm.vision_tower.", "vlm.language_model.encoder."
PROJECTOR, HEAD = "vlm.multi_modal_projector.", "transformer."
FIELDS = LEROBOT | words("""
    dtype florence_config tokenizer_name hidden_size depth num_heads num_domains len_soft_prompts dim_time
    max_len_seq use_hetero_proj action_mode num_denoising_steps max_state_dim resize_imgs_with_padding
    num_image_views freeze_language_encoder train_policy_transformer train_soft_prompts
    optimizer_soft_prompt_lr_scale optimizer_soft_prompt_warmup_lr_scale
""")
FIXED: Mapping[str, Any] = {
    **LEROBOT_FIXED,
    "use_proprio": True,
    "mlp_ratio": 4.0,
    "tokenizer_padding_side": "right",
    "pad_language_to": "max_length",
    "domain_feature_key": None,
}
FLORENCE = TRANSFORMERS | words("""
    vision_config text_config projection_dim vocab_size image_token_id ignore_index tie_word_embeddings
    initializer_range
""")
FLORENCE_FIXED: Mapping[str, Any] = {**GENERATION, "is_encoder_decoder": True, "scale_embedding": False}
VISION = TRANSFORMERS | words("""
    depths dim_embed embed_dim num_heads num_groups window_size drop_path_rate image_pos_embed
    visual_temporal_embedding projection_dim max_temporal_embeddings max_position_embeddings
    initializer_range in_channels
""")
VISION_FIXED: Mapping[str, Any] = {
    "patch_size": [kernel for kernel, _, _ in CONVOLUTIONS],
    "patch_stride": [stride for _, stride, _ in CONVOLUTIONS],
    "patch_padding": [padding for _, _, padding in CONVOLUTIONS],
    "patch_prenorm": [False, True, True, True],
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "activation_function": "gelu",
    "hidden_act": "gelu",
    "enable_checkpoint": False,
    "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
}
BART = TRANSFORMERS | words("""
    vocab_size d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads
    encoder_ffn_dim decoder_ffn_dim max_position_embeddings dropout attention_dropout activation_dropout
    encoder_layerdrop decoder_layerdrop classifier_dropout init_std num_hidden_layers tie_word_embeddings
    forced_bos_token_id forced_eos_token_id no_repeat_ngram_size early_stopping num_beams add_bias_logits
    add_final_layer_norm gradient_checkpointing normalize_before normalize_embedding
    static_position_embeddings
""")
BART_FIXED: Mapping[str, Any] = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "add_cross_attention": False,
}


@tensors_of("the folder that lerobot saved an X-VLA in")
def infer_xvla(shapes: Shapes, data: Mapping[str, Any]) -> XVLAConfig:
    """Return the sizes of the checkpoint with these tensors, by transformers' names. data: lerobot's
    config.json.

    Raises ValueError if a tensor is missing or a setting is unknown.
    """
    check_settings(data)
    florence = data["florence_config"]
    text = _text(shapes, florence["text_config"])
    width, mlp = _transformer(shapes)
    cameras, side = lerobot_cameras(data), _side(data)
    domains, outer = axes(shapes, HEAD + "action_decoder.bias.weight", 2)
    hub = HEAD + "soft_prompt_hub.weight"
    prompts = axes(shapes, hub, 2)[1] // width if hub in shapes else 0
    return XVLAConfig(
        vision=_vision(shapes, florence["vision_config"]),
        text=text,
        image_size=side,
        width=width,
        depth=depth(shapes, HEAD + "blocks."),
        mlp=mlp,
        heads=whole(data, "num_heads"),
        domains=domains,
        prompts=prompts,
        time_dim=whole(data, "dim_time"),
        max_positions=axes(shapes, HEAD + "pos_emb", 3)[1],
        domain_projections=bool(data.get("use_hetero_proj", False)),
        action_dim=outer,
        state_dim=whole(data, "max_state_dim", 32),
        horizon=whole(data, "chunk_size"),
        max_prompt=whole(data, "tokenizer_max_length"),
        views=_views(data),
        image_names=cameras,
        action_mode=_mode(data),
    )


def check_settings(data: Mapping[str, Any]) -> None:
    """Raise ValueError naming a field of lerobot's config.json that is unknown or not implemented."""
    check_fields(data, "", FIELDS, FIXED)
    florence = data.get("florence_config")
    parts = (
        [florence.get(name) for name in ("vision_config", "text_config")]
        if isinstance(florence, dict)
        else []
    )
    if not isinstance(florence, dict) or not all(isinstance(part, dict) for part in parts):
        raise ValueError(
            "florence_config must have a vision_config and a text_config; copy config.json again."
        )
    check_fields(florence, "florence_config.", FLORENCE, FLORENCE_FIXED)
    check_fields(parts[0] or {}, "florence_config.vision_config.", VISION, VISION_FIXED)
    check_fields(parts[1] or {}, "florence_config.text_config.", BART, BART_FIXED)


def _views(data: Mapping[str, Any]) -> int:
    """As lerobot counts them whenever it loads a folder: its empty cameras once more than config.json lists
    them."""
    listed = len(features_of(data, "input_features", "VISUAL"))
    return max(whole(data, "num_image_views", 1), listed + whole(data, "empty_cameras", 0, least=0))


def _mode(data: Mapping[str, Any]) -> str:
    mode = data.get("action_mode", "ee6d")
    if not isinstance(mode, str) or mode.lower() not in GRIPPERS:
        raise ValueError(f"action_mode is {mode!r}; known are {', '.join(GRIPPERS)}.")
    return mode.lower()


def _side(data: Mapping[str, Any]) -> int:
    size = data.get("resize_imgs_with_padding")
    if not isinstance(size, list) or len(size) != 2 or size[0] != size[1]:
        raise ValueError(
            f"resize_imgs_with_padding is {size!r}; give the square to which cameras are resized, such as "
            "[224, 224]."
        )
    return whole({"resize_imgs_with_padding": size[0]}, "resize_imgs_with_padding")


def _vision(shapes: Shapes, data: Mapping[str, Any]) -> DaViTConfig:
    widths = tuple(axes(shapes, f"{TOWER}convs.{stage}.conv.weight", 4)[0] for stage in range(4))
    depths = tuple(depth(shapes, f"{TOWER}blocks.{stage}.") for stage in range(4))
    counts = dict[str, list[int]]()
    for name in ("num_heads", "num_groups"):
        value = data.get(name)
        if not isinstance(value, list):
            raise ValueError(f"florence_config.vision_config.{name} is {value!r}; give four numbers.")
        counts[name] = value
    position = PROJECTOR + "image_position_embed.row_embeddings.weight"
    return DaViTConfig(
        widths=widths,
        depths=depths,
        heads=tuple(counts["num_heads"]),
        groups=tuple(counts["num_groups"]),
        window=whole(data, "florence_config.vision_config.window_size", 12),
        max_positions=axes(shapes, position, 2)[0],
        max_frames=axes(shapes, PROJECTOR + "visual_temporal_embed.pos_idx_to_embed", 2)[0],
    )


def _text(shapes: Shapes, data: Mapping[str, Any]) -> BartConfig:
    vocab, width = axes(shapes, TEXT + "embed_tokens.weight", 2)
    return BartConfig(
        width=width,
        depth=depth(shapes, TEXT + "layers."),
        mlp=axes(shapes, TEXT + "layers.0.fc1.weight", 2)[0],
        heads=whole(data, "florence_config.text_config.encoder_attention_heads"),
        vocab=vocab,
        max_positions=axes(shapes, TEXT + "embed_positions.weight", 2)[0] - UNUSED_POSITIONS,
    )


def _transformer(shapes: Shapes) -> tuple[int, int]:
    mlp, width = axes(shapes, HEAD + "blocks.0.mlp.fc1.weight", 2)
    return width, mlp
