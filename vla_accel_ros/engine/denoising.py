"""All steps of the flow as one stage: five launches a layer, two more a step, nothing in between.

Keys and values of the prefix are read in their pool slot, those of the suffix in a buffer that each layer
uses again. Slots and lengths are on the device: one graph serves every frame. The state of the flow is
float32; everything that only depends on the flow time was computed before (models/folded.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.engine.graphs import Stage
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.folded import Expert


class Denoise(Stage):
    """`batch` chunks in `expert.steps` steps.

    x float32 [B, H, A]: noise, then actions; update float32 [B, H, A]: what the last step added;
    state float32 [B, S], for pi0; slots, lengths int32 [B]: where each chunk's prefix is and how long.
    """

    def __init__(
        self,
        config: PiConfig,
        expert: Expert,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        ops: Ops,
        batch: int,
    ) -> None:
        device, dtype = pool.k.device, pool.k.dtype
        super().__init__(device)
        self.config, self.expert, self.pool, self.ops = config, expert, pool, ops
        self.cos, self.sin = tables
        self.alone = 1 if config.kind == "pi0" else 0
        sizes, tokens = config.expert, config.horizon + self.alone
        self.x = torch.zeros(batch, config.horizon, config.action_dim, device=device)
        self.update = torch.zeros_like(self.x)
        self.state = torch.zeros(batch, config.state_dim, device=device)
        self.slots = torch.zeros(batch, dtype=torch.int32, device=device)
        self.lengths = torch.ones(batch, dtype=torch.int32, device=device)
        self._rows = torch.arange(batch, dtype=torch.int32, device=device)
        self._zeros = torch.zeros(batch, dtype=torch.int32, device=device)
        self._tails = torch.full((batch,), tokens, dtype=torch.int32, device=device)

        def place(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, device=device, dtype=dtype)

        self._hidden, self._fed = place(tokens, sizes.width), place(tokens, sizes.mlp)
        self._q = place(tokens, sizes.heads, sizes.head_dim)
        self._k, self._v = (place(sizes.kv_heads, tokens, sizes.head_dim) for _ in range(2))
        rows, keys = tokens * sizes.heads // sizes.kv_heads, pool.max_tokens + tokens
        parts = ops.parts(rows, keys, sizes.head_dim, dtype)
        self._partial = torch.zeros(
            parts, batch, tokens, sizes.heads * sizes.head_dim, device=device, dtype=dtype
        )
        self._lse = torch.zeros(parts, batch, tokens, sizes.heads, device=device)

    def set(self, noise: Tensor, state: Tensor | None, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """noise float32 [B, H, A]; state float32 [B, S], for pi0; the prefixes' slots and lengths, B each."""
        self.x.copy_(noise)
        if state is not None:
            self.state.copy_(state)
        self.slots.copy_(torch.tensor(slots, dtype=torch.int32))
        self.lengths.copy_(torch.tensor(lengths, dtype=torch.int32))

    def body(self) -> None:
        expert, token = self.expert, None
        if expert.state_weight is not None:
            token = F.linear(self.state, expert.state_weight, expert.state_bias).to(self._hidden.dtype)
        for step in range(expert.steps):
            now = slice(step, step + 1)
            self.ops.embed_actions(
                self.x,
                expert.in_weight,
                expert.in_bias[now],
                self._hidden,
                expert.mlp_weight,
                expert.mlp_bias,
                token,
            )
            for layer in range(len(expert.layers)):
                self._layer(now, layer)
            final = None if expert.modulation is None else expert.modulation.final[now]
            self.ops.read_out(
                self._hidden, expert.out_weight, expert.out_bias[now], self.x, self.update, final
            )

    def _layer(self, now: slice, index: int) -> None:
        layer, table, ops = self.expert.layers[index], self.expert.modulation, self.ops
        scale = bias = gate = mlp_scale = mlp_bias = mlp_gate = None
        if table is not None:
            scale, bias = table.attention_scale[now, index], table.attention_bias[now, index]
            mlp_scale, mlp_bias = table.mlp_scale[now, index], table.mlp_bias[now, index]
            gate, mlp_gate = table.attention_gate[now, index], table.mlp_gate[now, index]
        ops.rotary_qkv(
            self._hidden, layer.qkv, self.cos, self.sin, self.lengths, self._q, self._k, self._v, self._rows,
            self._zeros, scale, bias,
        )  # fmt: skip
        ops.attend(
            self._q, self.pool.k[:, index], self.pool.v[:, index], self.slots, self.lengths, self._partial,
            self._lse, self._k, self._v, self._tails, self.alone,
        )  # fmt: skip
        ops.project_attended(self._partial, self._lse, layer.o, self._hidden, gate)
        ops.gated_up(self._hidden, layer.gate_up, self._fed, mlp_scale, mlp_bias)
        ops.project(self._fed, layer.down, self._hidden, mlp_gate)
