"""Infer a model's sizes from the shapes of its tensors, for checkpoints without ours.

openpi's and lerobot's checkpoints do not say how large they are, and openpi's not whether they are pi0 or
pi0.5. Their tensors do, except for key/value heads (1 in every published model) and vision heads (72 channels
each in So400m). What no tensor shows (horizon, longest prompt, cameras) is given by the caller.
"""

from __future__ import annotations

from vla_accel_ros.models.config import IMAGE_NAMES, PI0, PI05, GemmaConfig, PiConfig
from vla_accel_ros.models.inferred import Shapes, axes, siglip, stack

VISION = "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
PREFIX = "paligemma_with_expert.paligemma.model.language_model."
EXPERT = "paligemma_with_expert.gemma_expert.model."
VISION_HEAD_DIM = 72


def infer_config(
    shapes: Shapes,
    source: str,
    horizon: int = PI0.horizon,
    max_prompt: int | None = None,
    image_names: tuple[str, ...] = IMAGE_NAMES,
) -> PiConfig:
    """Return the sizes of the checkpoint with these tensors. source: its name in errors. max_prompt: None
    means openpi's.

    Raises ValueError if a tensor is missing, or if its shape is not a matrix's or is ambiguous.
    """
    pi05 = "time_mlp_in.weight" in shapes
    try:
        _, action_dim = axes(shapes, "action_in_proj.weight", 2)
        return PiConfig(
            kind="pi05" if pi05 else "pi0",
            vision=siglip(shapes, VISION, VISION_HEAD_DIM),
            prefix=_gemma(shapes, PREFIX),
            expert=_gemma(shapes, EXPERT),
            vocab=_vocab(shapes),
            action_dim=action_dim,
            state_dim=action_dim if pi05 else axes(shapes, "state_proj.weight", 2)[1],
            horizon=horizon,
            max_prompt=max_prompt or (PI05 if pi05 else PI0).max_prompt,
            image_names=image_names,
        )
    except KeyError as error:
        raise ValueError(
            f"{source} has no tensor {error.args[0]}, so it does not tell the model's sizes; if it is an "
            'openpi checkpoint, add a config.json with the field "vla_accel_ros".'
        ) from error
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _gemma(shapes: Shapes, root: str) -> GemmaConfig:
    head_dim, _ = axes(shapes, root + "layers.0.self_attn.k_proj.weight", 2)  # of its one key head
    return stack(GemmaConfig, shapes, root, head_dim)


def _vocab(shapes: Shapes) -> int:
    head = "paligemma_with_expert.paligemma.lm_head.weight"
    return axes(shapes, head if head in shapes else PREFIX + "embed_tokens.weight", 2)[0]
