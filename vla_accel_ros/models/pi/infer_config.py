"""Infer a model's sizes from the shapes of its tensors, for checkpoints without ours.

openpi's and lerobot's checkpoints do not say how large they are, and openpi's not whether they are pi0 or
pi0.5. Their tensors do, except for key/value heads (1 in every published model) and vision heads (72 channels
each in So400m). What no tensor shows (horizon, longest prompt, cameras) is given by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

from vla_accel_ros.models.config import IMAGE_NAMES, PI0, PI05, GemmaConfig, PiConfig, VisionConfig

VISION = "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
PREFIX = "paligemma_with_expert.paligemma.model.language_model."
EXPERT = "paligemma_with_expert.gemma_expert.model."
VISION_HEAD_DIM = 72

Shapes = Mapping[str, tuple[int, ...]]


def infer_config(
    shapes: Shapes,
    source: str,
    horizon: int = PI0.horizon,
    max_prompt: int | None = None,
    image_names: tuple[str, ...] = IMAGE_NAMES,
) -> PiConfig:
    """Return the sizes of the checkpoint with these tensors. source: its name in errors. max_prompt: None
    means openpi's.

    Raises ValueError if a tensor is missing or its shape is ambiguous.
    """
    pi05 = "time_mlp_in.weight" in shapes
    try:
        patches = shapes[VISION + "embeddings.position_embedding.weight"][0]
        width, _, patch, _ = shapes[VISION + "embeddings.patch_embedding.weight"]
        vision = VisionConfig(
            width=width,
            depth=_depth(shapes, VISION + "encoder.layers."),
            mlp=shapes[VISION + "encoder.layers.0.mlp.fc1.weight"][0],
            heads=_vision_heads(width, source),
            image_size=patch * round(patches**0.5),
            patch=patch,
        )
        action_dim = shapes["action_in_proj.weight"][1]
        return PiConfig(
            kind="pi05" if pi05 else "pi0",
            vision=vision,
            prefix=_gemma(shapes, PREFIX),
            expert=_gemma(shapes, EXPERT),
            vocab=_vocab(shapes),
            action_dim=action_dim,
            state_dim=action_dim if pi05 else shapes["state_proj.weight"][1],
            horizon=horizon,
            max_prompt=max_prompt or (PI05 if pi05 else PI0).max_prompt,
            image_names=image_names,
        )
    except KeyError as error:
        raise ValueError(
            f"{source} has no tensor {error.args[0]}, so it does not tell the model's sizes; if it is an "
            'openpi checkpoint, add a config.json with the field "vla_accel_ros".'
        ) from error


def _gemma(shapes: Shapes, root: str) -> GemmaConfig:
    layer = root + "layers.0."
    head_dim = shapes[layer + "self_attn.k_proj.weight"][0]
    rows, width = shapes[layer + "self_attn.q_proj.weight"]
    return GemmaConfig(
        width=width,
        depth=_depth(shapes, root + "layers."),
        mlp=shapes[layer + "mlp.gate_proj.weight"][0],
        heads=rows // head_dim,
        kv_heads=1,
        head_dim=head_dim,
    )


def _vocab(shapes: Shapes) -> int:
    head = "paligemma_with_expert.paligemma.lm_head.weight"
    return shapes[head if head in shapes else PREFIX + "embed_tokens.weight"][0]


def _depth(shapes: Shapes, root: str) -> int:
    return 1 + max(
        (int(name[len(root) :].split(".")[0]) for name in shapes if name.startswith(root)), default=0
    )


def _vision_heads(width: int, source: str) -> int:
    if width % VISION_HEAD_DIM:
        raise ValueError(
            f"{source}: a vision width of {width} does not tell the number of heads; "
            'add a config.json with the field "vla_accel_ros".'
        )
    return width // VISION_HEAD_DIM
