"""Map openpi's JAX parameters to those of the PyTorch layout.

In JAX a stack of layers is one array whose first axis is the layer, a projection has its heads as an axis, a
dense kernel is input by output, and names of the action expert contain `_1`. Nothing is computed: every
parameter is a slice of an array with permuted axes. The same rules apply to shapes without data, to compare a
checkpoint with a model before any array is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vla_accel_ros.models.config import IMAGE_NAMES, PI0, PI05, GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.inferred import Shapes, axes

IMG, LLM = "PaliGemma/img/", "PaliGemma/llm/"
BLOCK, ATTENTION = IMG + "Transformer/encoderblock/", "MultiHeadDotProductAttention_0/"
PALIGEMMA = "paligemma_with_expert.paligemma.model."
VISION = PALIGEMMA + "vision_tower.vision_model."
PREFIX, EXPERT = PALIGEMMA + "language_model.", "paligemma_with_expert.gemma_expert.model."

Turn = Callable[[Tensor], Tensor]


class Slice(NamedTuple):
    """A parameter as part of an array. at: index on its leading axes. turn: permutes the remaining axes."""

    parameter: str
    at: tuple[int, ...]
    turn: Turn

    def of(self, array: Tensor) -> Tensor:
        """Return the parameter."""
        return self.turn(array[self.at] if self.at else array)


def _as_is(x: Tensor) -> Tensor:
    return x


def _turned(x: Tensor) -> Tensor:
    return x.mT


def _flat(x: Tensor) -> Tensor:
    return x.flatten()


def _patches(x: Tensor) -> Tensor:
    """[p, p, 3, W] -> [W, 3, p, p]"""
    return x.permute(3, 2, 0, 1)


def _positions(x: Tensor) -> Tensor:
    """[1, T, W] -> [T, W]"""
    return x.flatten(0, -2)


def _into_heads(x: Tensor) -> Tensor:
    """[W, heads, head_dim] -> [heads * head_dim, W]"""
    return x.flatten(1).mT


def _per_head(x: Tensor) -> Tensor:
    """[heads, W, head_dim] -> [heads * head_dim, W]"""
    return x.transpose(1, 2).flatten(0, 1)


def _out_of_heads(x: Tensor) -> Tensor:
    """[heads, head_dim, W] -> [W, heads * head_dim]"""
    return x.flatten(0, 1).mT


_WHOLE: dict[str, tuple[str, Turn]] = {
    IMG + "embedding/kernel": (VISION + "embeddings.patch_embedding.weight", _patches),
    IMG + "embedding/bias": (VISION + "embeddings.patch_embedding.bias", _as_is),
    IMG + "pos_embedding": (VISION + "embeddings.position_embedding.weight", _positions),
    IMG + "Transformer/encoder_norm/scale": (VISION + "post_layernorm.weight", _as_is),
    IMG + "Transformer/encoder_norm/bias": (VISION + "post_layernorm.bias", _as_is),
    IMG + "head/kernel": (PALIGEMMA + "multi_modal_projector.linear.weight", _turned),
    IMG + "head/bias": (PALIGEMMA + "multi_modal_projector.linear.bias", _as_is),
    LLM + "embedder/input_embedding": (PREFIX + "embed_tokens.weight", _as_is),
    LLM + "final_norm/scale": (PREFIX + "norm.weight", _as_is),
    LLM + "final_norm_1/scale": (EXPERT + "norm.weight", _as_is),
    LLM + "final_norm_1/Dense_0/kernel": (EXPERT + "norm.dense.weight", _turned),
    LLM + "final_norm_1/Dense_0/bias": (EXPERT + "norm.dense.bias", _as_is),
}
for _name in (
    *("state_proj", "action_in_proj", "action_out_proj", "action_time_mlp_in", "action_time_mlp_out"),
    *("time_mlp_in", "time_mlp_out"),
):
    _WHOLE[f"{_name}/kernel"] = f"{_name}.weight", _turned
    _WHOLE[f"{_name}/bias"] = f"{_name}.bias", _as_is

_Part = tuple[tuple[int, ...], str, Turn]
_LAYERED: dict[str, tuple[str, tuple[_Part, ...]]] = {}


def _layer(array: str, root: str, leaf: str, turn: Turn) -> None:
    """Add an array that is one parameter of every layer."""
    _LAYERED[array] = root, (((), leaf, turn),)


for _jax, _torch, _weight, _turn, _bias in (
    ("LayerNorm_0", "layer_norm1", "scale", _as_is, _as_is),
    ("LayerNorm_1", "layer_norm2", "scale", _as_is, _as_is),
    ("MlpBlock_0/Dense_0", "mlp.fc1", "kernel", _turned, _as_is),
    ("MlpBlock_0/Dense_1", "mlp.fc2", "kernel", _turned, _as_is),
    (f"{ATTENTION}query", "self_attn.q_proj", "kernel", _into_heads, _flat),
    (f"{ATTENTION}key", "self_attn.k_proj", "kernel", _into_heads, _flat),
    (f"{ATTENTION}value", "self_attn.v_proj", "kernel", _into_heads, _flat),
    (f"{ATTENTION}out", "self_attn.out_proj", "kernel", _out_of_heads, _flat),
):
    _layer(f"{BLOCK}{_jax}/{_weight}", f"{VISION}encoder.", f"{_torch}.weight", _turn)
    _layer(f"{BLOCK}{_jax}/bias", f"{VISION}encoder.", f"{_torch}.bias", _bias)
for _one, _root in (("", PREFIX), ("_1", EXPERT)):
    _attention, _mlp = f"{LLM}layers/attn/", f"{LLM}layers/mlp{_one}/"
    _layer(f"{_attention}q_einsum{_one}/w", _root, "self_attn.q_proj.weight", _per_head)
    _layer(f"{_attention}attn_vec_einsum{_one}/w", _root, "self_attn.o_proj.weight", _out_of_heads)
    _layer(f"{_mlp}linear", _root, "mlp.down_proj.weight", _turned)
    for _array, _first, _second, _turn in (
        (f"{_attention}kv_einsum{_one}/w", "self_attn.k_proj.weight", "self_attn.v_proj.weight", _per_head),
        (f"{_mlp}gating_einsum", "mlp.gate_proj.weight", "mlp.up_proj.weight", _turned),
    ):
        _LAYERED[_array] = _root, (((0,), _first, _turn), ((1,), _second, _turn))
    for _jax, _torch in (
        ("pre_attention_norm", "input_layernorm"),
        ("pre_ffw_norm", "post_attention_layernorm"),
    ):
        _layer(f"{LLM}layers/{_jax}{_one}/scale", _root, f"{_torch}.weight", _as_is)
        _layer(f"{LLM}layers/{_jax}{_one}/Dense_0/kernel", _root, f"{_torch}.dense.weight", _turned)
        _layer(f"{LLM}layers/{_jax}{_one}/Dense_0/bias", _root, f"{_torch}.dense.bias", _as_is)


def slices(name: str, shape: tuple[int, ...]) -> Iterator[Slice]:
    """Yield every parameter in the array of this name and shape; an unknown array is one parameter of the
    same name."""
    if name in _WHOLE:
        parameter, turn = _WHOLE[name]
        yield Slice(parameter, (), turn)
    elif name in _LAYERED and shape:
        root, parts = _LAYERED[name]
        for layer in range(shape[0]):
            for index, leaf, turn in parts:
                yield Slice(f"{root}layers.{layer}.{leaf}", (layer, *index), turn)
    else:
        yield Slice(name, (), _as_is)


def parameter_shapes(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the parameters in an array. Raises ValueError if it has other axes."""
    array = torch.empty(shape, device="meta")
    try:
        return {part.parameter: tuple(part.of(array).shape) for part in slices(name, shape)}
    except (IndexError, RuntimeError) as error:
        raise ValueError(f"{name} has shape {list(shape)}, which is not that of openpi's array.") from error


def jax_config(shapes: Shapes, horizon: int = PI0.horizon) -> PiConfig:
    """Return a model's sizes from the shapes of its arrays; the horizon is in none of them.

    Raises KeyError if an array is missing, ValueError if one has other axes.
    """
    pi05 = "time_mlp_in/kernel" in shapes
    stacks, (action_dim, _) = jax_stacks(shapes), axes(shapes, "action_in_proj/kernel", 2)
    return PiConfig(
        kind="pi05" if pi05 else "pi0",
        **stacks,
        expert=_gemma(shapes, "_1"),
        action_dim=action_dim,
        state_dim=action_dim if pi05 else axes(shapes, "state_proj/kernel", 2)[0],
        horizon=horizon,
        max_prompt=(PI05 if pi05 else PI0).max_prompt,
        image_names=IMAGE_NAMES,
    )


def jax_stacks(shapes: Shapes) -> dict[str, Any]:
    """Return the sizes of PaliGemma: vision, prefix, vocab. Raises as jax_config."""
    patch, _, _, width = axes(shapes, IMG + "embedding/kernel", 4)
    depth, _, heads, _ = axes(shapes, f"{BLOCK}{ATTENTION}query/kernel", 4)
    vision = VisionConfig(
        width=width,
        depth=depth,
        mlp=axes(shapes, BLOCK + "MlpBlock_0/Dense_0/kernel", 3)[-1],
        heads=heads,
        image_size=patch * round(axes(shapes, IMG + "pos_embedding", 3)[1] ** 0.5),
        patch=patch,
    )
    vocab = axes(shapes, LLM + "embedder/input_embedding", 2)[0]
    return {"vision": vision, "prefix": _gemma(shapes, ""), "vocab": vocab}


def _gemma(shapes: Shapes, one: str) -> GemmaConfig:
    depth, heads, width, head_dim = axes(shapes, f"{LLM}layers/attn/q_einsum{one}/w", 4)
    _, _, kv_heads, _, _ = axes(shapes, f"{LLM}layers/attn/kv_einsum{one}/w", 5)
    mlp = axes(shapes, f"{LLM}layers/mlp{one}/linear", 3)[1]
    return GemmaConfig(width, depth, mlp, heads, kv_heads, head_dim)
