"""Infer a GR00T's sizes from the shapes of its tensors and the small files that name the rest.

Tensors do not show the widths of heads, the layers whose features skip, and the rotary positions; assets.py
finds the files that do. All other sizes come from the shapes, so that a wrong file is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vla_accel_ros.models.checkpoints.fields import part
from vla_accel_ros.models.config import BlocksConfig, LlamaConfig, VisionConfig, whole_numbers
from vla_accel_ros.models.groot.assets import Assets
from vla_accel_ros.models.groot.config import MOST_ASPECT, N1_5, GrootConfig
from vla_accel_ros.models.groot.model import ROOTS
from vla_accel_ros.models.groot.pixels import Geometry
from vla_accel_ros.models.inferred import Shapes, axes, depth, number, siglip, stack, tensors_of, whole

NORM_EPS = 1e-6
MAX_PROMPT = 192
"""Most tokens of a prompt beside its images: an instruction of some 150 words."""


@tensors_of("the folder that a GR00T was saved in")
def infer_groot(
    shapes: Shapes, assets: Assets, geometry: Geometry, names: tuple[str, ...], views: int
) -> GrootConfig:
    """Return the sizes. shapes: with NVIDIA's names. names: of all cameras; views: the most of one
    embodiment. Raises ValueError if a tensor is missing or a field is no number."""
    roots, backbone, old = ROOTS[assets.kind], assets.backbone, assets.kind == N1_5
    head = "action_head."
    vision, merge, connector = _tower(shapes, assets)
    embodiments, state_dim, hidden = axes(shapes, f"{head}state_encoder.layer1.W", 3)
    return GrootConfig(
        kind=assets.kind,
        vision=vision,
        merge=merge,
        taps=() if old else whole_numbers(part(backbone, "vision_config.deepstack_visual_indexes"), "taps"),
        connector=connector,
        text=_text(shapes, roots["language_model."], assets),
        theta=_theta(backbone),
        sections=() if old else _sections(backbone),
        vocab=_vocab(shapes, roots),
        image_token=whole(backbone, "image_token_index" if old else "image_token_id", least=0),
        mixer=_blocks(shapes, f"{head}vl_self_attention.", assets.head, "vl_self_attention_cfg"),
        dit=_blocks(shapes, f"{head}model.", assets.head, "diffusion_model_cfg"),
        dit_out=axes(shapes, f"{head}model.proj_out_2.weight", 2)[0],
        hidden=hidden,
        embodiments=embodiments,
        future=axes(shapes, f"{head}future_tokens.weight", 2)[0] if old else 0,
        positions=axes(shapes, f"{head}position_embedding.weight", 2)[0],
        buckets=whole(assets.head, "num_timestep_buckets"),
        action_dim=axes(shapes, f"{head}action_encoder.W1.W", 3)[1],
        state_dim=state_dim,
        horizon=whole(assets.head, "action_horizon"),
        image_tokens=_image_tokens(geometry, vision.patch * merge),
        max_prompt=MAX_PROMPT,
        image_names=names,
        views=views,
    )


def _text(shapes: Shapes, root: str, assets: Assets) -> LlamaConfig:
    """The layers that are kept; a file may have more."""
    head_dim = axes(shapes, f"{root}layers.0.self_attn.q_norm.weight", 1)[0]
    eps = float(part(assets.backbone, "text_config.rms_norm_eps", NORM_EPS))
    text = stack(LlamaConfig, shapes, root, head_dim, norm_eps=eps)
    return replace(text, depth=min(text.depth, assets.layers or text.depth))


def _tower(shapes: Shapes, assets: Assets) -> tuple[VisionConfig, int, int]:
    """The tower, how many patches of a side become one token, and how many layers lead to the text: of N1.5
    one, or a norm and two, perhaps after joining patches."""
    root, settings = ROOTS[assets.kind]["visual."], part(assets.backbone, "vision_config", {})
    if assets.kind == N1_5:
        width = axes(shapes, f"{root}embeddings.patch_embedding.weight", 4)[0]
        vision = siglip(shapes, root, max(1, width // whole(settings, "num_attention_heads")))
        connector = ROOTS[N1_5]["mlp1."]
        layers = 1 if len(shapes[f"{connector}0.weight"]) == 2 else 2
        joined = axes(shapes, f"{connector}{layers - 1}.weight", 2)[1]
        return vision, round((joined / width) ** 0.5), layers
    places, width = axes(shapes, f"{root}pos_embed.weight", 2)
    patch = axes(shapes, f"{root}patch_embed.proj.weight", 5)[-1]
    vision = VisionConfig(
        width=width,
        depth=depth(shapes, f"{root}blocks."),
        mlp=axes(shapes, f"{root}blocks.0.mlp.linear_fc1.weight", 2)[0],
        heads=whole(settings, "num_heads"),
        image_size=patch * round(places**0.5),
        patch=patch,
    )
    joined = axes(shapes, f"{root}merger.linear_fc1.weight", 2)[1]
    return vision, round((joined / width) ** 0.5), 2


def _blocks(shapes: Shapes, root: str, head: Mapping[str, Any], field: str) -> BlocksConfig:
    first, settings = f"{root}transformer_blocks.0.", part(head, field, {})
    mlp, width = axes(shapes, f"{first}ff.net.0.proj.weight", 2)
    return BlocksConfig(
        width=width,
        depth=depth(shapes, f"{root}transformer_blocks."),
        mlp=mlp,
        heads=whole(settings, f"{field}.num_attention_heads"),
        head_dim=whole(settings, f"{field}.attention_head_dim"),
    )


def _vocab(shapes: Shapes, roots: Mapping[str, str]) -> int:
    """Of the token embedding, which lerobot may have saved under its other name."""
    name = f"{roots['language_model.']}embed_tokens.weight"
    return axes(shapes, name if name in shapes else f"{roots['lm_head.']}weight", 2)[0]


def _theta(backbone: Mapping[str, Any]) -> float:
    text = part(backbone, "text_config", {})
    places = {"rope_theta": part(text, "rope_parameters.rope_theta", part(text, "rope_theta"))}
    theta = number(places, "text_config.rope_theta")
    if theta <= 1:
        raise ValueError(f"text_config.rope_theta is {theta!r}; it must be above 1.")
    return theta


def _sections(backbone: Mapping[str, Any]) -> tuple[int, ...]:
    names = ("rope_parameters", "rope_scaling")
    values = [part(backbone, f"text_config.{name}.mrope_section") for name in names]
    sections = whole_numbers(next((value for value in values if value), None), "text_config.mrope_section")
    if len(sections) != 3:
        raise ValueError(f"text_config.mrope_section is {list(sections)}; it must have three numbers.")
    return sections


def _image_tokens(geometry: Geometry, block: int) -> int:
    """Most tokens of an image, up to MOST_ASPECT times as long as wide."""
    edge = geometry.edge
    return max(
        height * width // block**2
        for height, width in (geometry.size(edge, edge), geometry.size(edge, MOST_ASPECT * edge))
    )
