"""The encoder of a T5 or UMT5, which makes features of an instruction for models of video.

It runs on the words alone, without padding, which its mask would hide. Attention is not scaled, and has a
learned bias for each distance between two words: of the first layer for all (T5), or of each (UMT5).
Parameter names are transformers'. Sizes come from the shapes and `config.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from vla_accel_ros.models.checkpoints.fields import check_fields, words
from vla_accel_ros.models.encoder_sizes import T5Config
from vla_accel_ros.models.inferred import Shapes, axes, depth, heads
from vla_accel_ros.models.layers.llama import RMSNorm
from vla_accel_ros.models.openvla.sizes import TRANSFORMERS

END = 1
"""Id of `</s>`, which ends every text."""
BLOCKS, BIAS = "encoder.block.", "layer.0.SelfAttention.relative_attention_bias.weight"
FIELDS = TRANSFORMERS | words("""
    vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads relative_attention_num_buckets
    relative_attention_max_distance dropout_rate classifier_dropout layer_norm_epsilon initializer_factor
    feed_forward_proj dense_act_fn is_gated_act is_encoder_decoder is_decoder decoder_start_token_id
    n_positions output_past task_specific_params tokenizer_class tie_word_embeddings use_cache
    scalable_attention tie_encoder_decoder max_new_tokens scale_decoder_outputs
""")
FIXED: Mapping[str, Any] = {"eos_token_id": END, "pad_token_id": 0}
ACTIVATIONS = {"relu": False, "gated-gelu": True}
"""feed_forward_proj -> whether the MLP has a gate, which is a tanh GELU then."""


def infer_t5(shapes: Shapes, data: Mapping[str, Any]) -> T5Config:
    """Return the sizes of the encoder with these tensors and this config.json. Raises KeyError if a tensor is
    missing, ValueError if a setting is unknown."""
    check_fields(data, "", FIELDS, FIXED)
    activation = data.get("feed_forward_proj", "relu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"feed_forward_proj is {activation!r}; known are {', '.join(ACTIVATIONS)}.")
    buckets, count = axes(shapes, f"{BLOCKS}0.{BIAS}", 2)
    inner, width = axes(shapes, f"{BLOCKS}0.layer.0.SelfAttention.q.weight", 2)
    vocab, _ = axes(shapes, "shared.weight", 2)
    layers = depth(shapes, BLOCKS)
    if inner % count:
        heads(inner, count, BLOCKS)
    first = "wi_0" if ACTIVATIONS[activation] else "wi"
    return T5Config(
        width=width,
        depth=layers,
        heads=count,
        head_dim=inner // count,
        mlp=axes(shapes, f"{BLOCKS}0.layer.1.DenseReluDense.{first}.weight", 2)[0],
        vocab=vocab,
        buckets=buckets,
        max_distance=data.get("relative_attention_max_distance", 128),
        gated=ACTIVATIONS[activation],
        biases=layers if layers > 1 and f"{BLOCKS}1.{BIAS}" in shapes else 1,
        eps=data.get("layer_norm_epsilon", 1e-6),
    )


def bucket(count: int, config: T5Config, device: torch.device) -> Tensor:
    """int64 [count, count]: number of the bias of word i (row) towards word j: one side each for later and
    earlier words; near ones by themselves, then in steps that grow."""
    order = torch.arange(count, device=device)
    distance = order[None] - order[:, None]
    half = config.buckets // 2
    near, far = half // 2, distance.abs()
    ratio = (far.clamp(min=1).float() / near).log() / math.log(config.max_distance / near)
    grown = (near + (ratio * (half - near)).long()).clamp(max=half - 1)
    return torch.where(far < near, far, grown) + half * (distance > 0)


class Attention(nn.Module):
    """`SelfAttention`"""

    def __init__(self, config: T5Config, biased: bool) -> None:
        super().__init__()
        self._heads, inner = config.heads, config.heads * config.head_dim
        self.q, self.k, self.v = (nn.Linear(config.width, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, config.width, bias=False)
        if biased:
            self.relative_attention_bias = nn.Embedding(config.buckets, config.heads)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """x [1, n, W]; bias [heads, n, n]."""
        q, k, v = (
            part(x).unflatten(2, (self._heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None], scale=1.0)
        return self.o(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """`DenseReluDense`"""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self._names = ("wi_0", "wi_1") if config.gated else ("wi",)
        for name in self._names:
            self.add_module(name, nn.Linear(config.width, config.mlp, bias=False))
        self.wo = nn.Linear(config.mlp, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first, *gate = (self.get_submodule(name)(x) for name in self._names)
        return self.wo(F.gelu(first, approximate="tanh") * gate[0] if gate else F.relu(first))


class Part(nn.Module):
    """`layer.N`: one of both behind a norm."""

    def __init__(self, name: str, inner: nn.Module, config: T5Config) -> None:
        super().__init__()
        self._name = name
        self.add_module(name, inner)
        self.layer_norm = RMSNorm(config.width, config.eps)

    def forward(self, x: Tensor, *bias: Tensor) -> Tensor:
        return x + self.get_submodule(self._name)(self.layer_norm(x), *bias)


class Block(nn.Module):
    """`block.N`"""

    def __init__(self, config: T5Config, biased: bool) -> None:
        super().__init__()
        attention = Part("SelfAttention", Attention(config, biased), config)
        self.layer = nn.ModuleList((attention, Part("DenseReluDense", FeedForward(config), config)))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.layer[1](self.layer[0](x, bias))


class Stack(nn.Module):
    """`encoder`"""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.block = nn.ModuleList(Block(config, index < config.biases) for index in range(config.depth))
        self.final_layer_norm = RMSNorm(config.width, config.eps)


class T5Encoder(nn.Module):
    """ids int64 [n], with END -> features [n, W], on the device of the ids. The weights may be on the host:
    then each block is copied to that device when it is computed, and dropped after it."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self._config = config
        self.shared = nn.Embedding(config.vocab, config.width)
        self.encoder = Stack(config)

    def forward(self, ids: Tensor) -> Tensor:
        device, rows = ids.device, self.shared.weight
        x, numbers = rows[ids.to(rows.device)].to(device)[None], bucket(len(ids), self._config, device)
        for index, block in enumerate(self.encoder.block):
            if index < self._config.biases:
                bias = block.get_parameter(BIAS).to(device)[numbers].permute(2, 0, 1)
            x = _called(block, device, x, bias)
        return _called(self.encoder.final_layer_norm, device, x)[0]


def _called(module: nn.Module, device: torch.device, *inputs: Tensor) -> Tensor:
    weights = {name: parameter.to(device) for name, parameter in module.named_parameters()}
    result: Tensor = functional_call(module, weights, inputs)
    return result
