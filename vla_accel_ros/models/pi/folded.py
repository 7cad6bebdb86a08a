"""The folded network: the same network with fewer, larger products. models/pi/folding.py makes it.

The prefix stack is fused. The action expert, for S steps of the flow, has constant factors folded into its
matrices, and everything that depends only on the flow time in tables with one row for each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from vla_accel_ros.models.layers.gemma import NORM_EPS


@dataclass(frozen=True)
class FoldedLayer:
    """The matrices of a Gemma layer, each [out, in], in the stack's dtype.

    qkv [(heads + 2 kv_heads) * head_dim, W]; o [W, heads * head_dim]; gate_up [2 * mlp, W], gate rows first;
    down [W, mlp].
    """

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor


class LayerTables(NamedTuple):
    """A layer's rows of Modulation for one step, [1, width], or for all of them, [S, width].

    None where the norms are not modulated.
    """

    attention_scale: Tensor | None = None
    attention_bias: Tensor | None = None
    attention_gate: Tensor | None = None
    mlp_scale: Tensor | None = None
    mlp_bias: Tensor | None = None
    mlp_gate: Tensor | None = None


@dataclass(frozen=True)
class Modulation:
    """The effect of the flow time on the norms of pi0.5, float32, one row for each step.

    scale, shift, gate: [S, layers, W], of the norms before attention and before the MLP.
    bias: the shift multiplied by the following matrix: [S, layers, rows of qkv] and [S, layers, 2 * mlp].
    final: the last norm's scale [S, W]; its shift is in Expert.out_bias.
    """

    attention_scale: Tensor
    attention_bias: Tensor
    attention_gate: Tensor
    mlp_scale: Tensor
    mlp_bias: Tensor
    mlp_gate: Tensor
    attention_shift: Tensor
    mlp_shift: Tensor
    final: Tensor

    def at(self, steps: slice) -> list[LayerTables]:
        """Return the rows of these steps, one for each layer."""
        rows = [getattr(self, name).transpose(0, 1)[:, steps].unbind(0) for name in LayerTables._fields]
        return [LayerTables(*row) for row in zip(*rows, strict=True)]


@dataclass(frozen=True)
class Constants:
    """The fields of an Expert that are computed for its steps; None and shapes as there."""

    modulation: Modulation | None
    in_weight: Tensor
    in_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor


@dataclass(frozen=True)
class Expert:
    """The action expert for S steps of the flow.

    in_weight float32 [W, A], in_bias float32 [S, W]: the projection of an action to its token; for pi0 its
    result then goes through SiLU, mlp_weight [W, W] (the stack's dtype) and mlp_bias float32 [W].
    state_weight float32 [W, state], state_bias float32 [W]: the state token of pi0. out_weight float32 [A,
    W], out_bias float32 [S, A]: include -dt and the final norm, so that x += rms(h) * (h * (1 + final)) @
    out_weight.T + out_bias. eps: of the norms. activation: of the gates, see kernels.reference.linear.
    causal: whether an action sees no later one. crossing: layers that read only the prefix; their qkv has
    queries alone.
    """

    layers: tuple[FoldedLayer, ...]
    modulation: Modulation | None
    in_weight: Tensor
    in_bias: Tensor
    mlp_weight: Tensor | None
    mlp_bias: Tensor | None
    state_weight: Tensor | None
    state_bias: Tensor | None
    out_weight: Tensor
    out_bias: Tensor
    eps: float = NORM_EPS
    activation: str = "gelu"
    causal: bool = False
    crossing: frozenset[int] = frozenset()

    @property
    def steps(self) -> int:
        """S"""
        return self.in_bias.shape[0]


class Cross(NamedTuple):
    """What an expert's cross layers read of a prefix: projections of its keys and values.

    layers int64 [C]: of the prefix stack; keys, values [C, kv_heads * D, kv_heads * D].
    """

    layers: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class Prefix:
    """The prefix stack: its layers, without the norms' factors, and the norms' own weights, float32 [layers,
    W].

    Its products are large, so its norms are separate kernels and their weights cost nothing. eps, activation:
    as in Expert. state_weight float32 [W, state], state_bias float32 [W]: of a state that is the last token,
    which only itself sees. first: position of the first token.
    """

    layers: tuple[FoldedLayer, ...]
    attention_norm: Tensor
    mlp_norm: Tensor
    final_norm: Tensor
    eps: float = NORM_EPS
    activation: str = "gelu"
    state_weight: Tensor | None = None
    state_bias: Tensor | None = None
    cross: Cross | None = None
    first: int = 0
