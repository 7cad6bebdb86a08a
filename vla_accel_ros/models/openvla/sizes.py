"""Infer the sizes of a published OpenVLA folder from its config.json and its tensors.

Hugging Face writes only what differs from its defaults, so openvla-7b's folder does not list Llama's layers
or heads, nor the towers' sizes. A field in the config takes precedence, so that tensors that differ are
reported; otherwise the shapes decide. Shapes do not show the number of heads, nor the depth of a truncated
file: those are known for the published widths and required in the config otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_accel_ros.models.checkpoints.fields import check_fields, words
from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.inferred import Shapes, axes, depth, tensors_of, whole
from vla_accel_ros.models.openvla.config import OPENVLA_7B, SPACE_TOKEN, OpenVLAConfig

LLAMA = "language_model.model."
DINO = "vision_backbone.featurizer."
SIGLIP = "vision_backbone.fused_featurizer."
PUBLISHED = {config.width: config for config in (OPENVLA_7B.dino, OPENVLA_7B.siglip)}

TRANSFORMERS = words("""
    model_type architectures auto_map torch_dtype dtype transformers_version _name_or_path name_or_path
    _attn_implementation _attn_implementation_autoset attn_implementation return_dict output_hidden_states
    output_attentions torchscript use_cache use_bfloat16 tf_legacy_loss tie_encoder_decoder
    chunk_size_feed_forward finetuning_task id2label label2id problem_type task_specific_params
    tokenizer_class prefix bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id
    max_length min_length early_stopping num_beam_groups diversity_penalty temperature top_k top_p typical_p
    length_penalty num_return_sequences output_scores return_dict_in_generate remove_invalid_values loss_type
""")
"""Fields of any model of transformers that change no token of greedy decoding."""
GENERATION: Mapping[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
    "quantization_config": None,
}
FIELDS = TRANSFORMERS | words("""
    text_config norm_stats n_action_bins vision_backbone_id llm_backbone_id hf_llm_id llm_max_length
    pad_to_multiple_of image_sizes timm_model_ids output_projector_states tie_word_embeddings
""")
TEXT_FIELDS = TRANSFORMERS | words("""
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
    head_dim rms_norm_eps max_position_embeddings initializer_range attention_dropout pretraining_tp
""")

# Settings that this code implements; any other value is refused.
FIXED = {
    **GENERATION,
    "image_resize_strategy": "resize-naive",
    "use_fused_vision_backbone": True,
    "arch_specifier": "no-align+fused-gelu-mlp",
    "timm_override_act_layers": [None, None],
}
FIXED_TEXT = {
    **GENERATION,
    "model_type": "llama",
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


@tensors_of("the folder of an OpenVLA with the DINOv2 and SigLIP towers")
def infer_openvla(shapes: Shapes, data: Mapping[str, Any]) -> OpenVLAConfig:
    """Return the sizes of the folder with these tensors. data: its config.json.

    Raises ValueError naming the field if the config asks for another network, or a size cannot be inferred.
    """
    text = check_settings(data)
    backbone = data.get("llm_backbone_id", "llama2-7b-pure")
    if not str(backbone).endswith("-pure"):
        raise ValueError(f"llm_backbone_id is {backbone!r}; only the prompt of '...-pure' is known.")
    vocab = whole(text, "text_config.vocab_size", axes(shapes, LLAMA + "embed_tokens.weight", 2)[0])
    action_vocab = vocab - whole(data, "pad_to_multiple_of", 64, least=0)
    sizes = data.get("image_sizes")
    dino_size, siglip_size = sizes if isinstance(sizes, list) and len(sizes) == 2 else (None, None)
    return OpenVLAConfig(
        dino=_tower(shapes, DINO, dino_size),
        siglip=_tower(shapes, SIGLIP, siglip_size),
        registers=axes(shapes, DINO + "reg_token", 3)[1],
        prefix=_llama(shapes, text),
        vocab=vocab,
        action_vocab=action_vocab,
        bins=whole(data, "n_action_bins", 256, least=2),
        space_token=SPACE_TOKEN if action_vocab > SPACE_TOKEN else None,
    )


def check_settings(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return text_config of a config.json. Raises ValueError naming a field that is unknown or not
    implemented."""
    text = data.get("text_config", {})
    if not isinstance(text, dict):
        raise ValueError(f"text_config holds a {type(text).__name__}; it must hold an object.")
    check_fields(data, "", FIELDS, FIXED)
    check_fields(text, "text_config.", TEXT_FIELDS, FIXED_TEXT)
    return text


def _llama(shapes: Shapes, text: Mapping[str, Any]) -> LlamaConfig:
    layer = LLAMA + "layers.0."
    rows, width = axes(shapes, layer + "self_attn.q_proj.weight", 2)
    published = OPENVLA_7B.prefix if width == OPENVLA_7B.prefix.width else None
    heads = whole(text, "text_config.num_attention_heads", published.heads if published else None)
    epsilon = text.get("rms_norm_eps", LlamaConfig.norm_eps)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"text_config.rms_norm_eps is {epsilon!r}; it must be between 0 and 1.")
    return LlamaConfig(
        width=whole(text, "text_config.hidden_size", width),
        depth=whole(
            text,
            "text_config.num_hidden_layers",
            published.depth if published else depth(shapes, LLAMA + "layers."),
        ),
        mlp=whole(text, "text_config.intermediate_size", axes(shapes, layer + "mlp.gate_proj.weight", 2)[0]),
        heads=heads,
        kv_heads=whole(text, "text_config.num_key_value_heads", heads),
        head_dim=whole(text, "text_config.head_dim", rows // heads),
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
