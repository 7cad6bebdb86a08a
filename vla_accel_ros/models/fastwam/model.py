"""Fast-WAM in plain torch: the reference that every faster path is compared with.

A video transformer reads the latents of one frame; an action transformer of the same depth and heads denoises
a chunk and attends in each layer to the video's keys and values and its own. Both attend to all rows of the
prompt, padding included, and to one more that is made of the joints. At inference the video's flow time is
always 0, so what its layers shift and scale by are constants of the checkpoint: `fold` computes them once and
drops what made them. For the actions that is one product a step, for all layers.

Parameter names are those of lerobot's policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.fastwam.config import ExpertConfig, FastWAMConfig
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import at_least_float32
from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.residual import ResidualStream, attention, product, residual_stream, rotated
from vla_accel_ros.models.layers.wan_vae import VAE
from vla_accel_ros.models.network import Network
from vla_accel_ros.models.text.t5 import T5Encoder

PERIOD = 10_000.0
"""Of the slowest rotation, and of the slowest part of the time embedding."""
MODULATIONS = 6
"""Of a layer: shift, scale and gate of its attention, and of its two products; scales are stored less 1."""


def angles(positions: Tensor, pairs: int) -> Tensor:
    """positions [T] -> float64 [T, pairs], the fastest first."""
    speeds = PERIOD ** (-torch.arange(pairs, dtype=torch.float64, device=positions.device) / pairs)
    return positions.double()[:, None] * speeds


def frame_angles(rows: int, columns: int, pairs: int, device: torch.device) -> Tensor:
    """float64 [rows * columns, pairs] of a first frame, row by row: a third of the pairs turns by the row, a
    third by the column, and the others, which turn by time, not."""
    third, places = pairs // 3, torch.arange(rows * columns, device=device)
    still = torch.zeros(len(places), pairs - 2 * third, dtype=torch.float64, device=device)
    return torch.cat((still, angles(places // columns, third), angles(places % columns, third)), dim=1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn neighbouring numbers of x [B, T, heads * head_dim] by a table [2, T, head_dim / 2] of cosines and
    sines."""
    turns = torch.complex(table[0], table[1])[:, None]
    pairs = x.to(at_least_float32(x.dtype)).unflatten(2, (-1, table.shape[2], 2))
    return torch.view_as_real(torch.view_as_complex(pairs) * turns).flatten(2).to(x.dtype)


class Attention(nn.Module):
    """Projections to queries, keys and values, which may be wider than the layer, and back. Queries and keys
    are normalised over all heads together."""

    def __init__(self, config: ExpertConfig, wide: int, heads: int, keys_only: bool = False) -> None:
        super().__init__()
        self._heads = heads
        self.k, self.v = nn.Linear(config.width, wide), nn.Linear(config.width, wide)
        self.norm_k = nn.RMSNorm(wide, config.eps)
        if not keys_only:
            self.q, self.o = nn.Linear(config.width, wide), nn.Linear(wide, config.width)
            self.norm_q = nn.RMSNorm(wide, config.eps)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [..., T, width] -> keys and values [..., T, wide]."""
        return self.norm_k(self.k(x)), self.v(x)

    def queries(self, x: Tensor) -> Tensor:
        """x [B, T, width], the norm of a stream -> [B, T, wide]."""
        q = product(x, self.q.weight, self.q.bias)
        heads, norm = q.unflatten(2, (self._heads, -1)), self.norm_q
        normed = rotated(heads, self._heads, None, None, norms=(norm.weight,) * 2, eps=norm.eps, whole=True)
        return norm(q) if normed is None else normed[0].flatten(2)

    def rotated(self, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, width], a table of `rotate` -> queries, keys and values [B, T, wide]."""
        ours = product(x, *fuse([self.q, self.k, self.v])).unflatten(2, (3 * self._heads, -1))
        norms, eps = (self.norm_q.weight, self.norm_k.weight), self.norm_q.eps
        qk, (cos, sin) = ours[:, :, : 2 * self._heads], table
        turned = rotated(qk, self._heads, cos, sin, norms=norms, eps=eps, whole=True, paired=True)
        if turned is None:
            q, k, v = ours.flatten(2).chunk(3, dim=2)
            return rotate(self.norm_q(q), table), rotate(self.norm_k(k), table), v
        return turned[0].flatten(2), turned[1].flatten(2), ours[:, :, 2 * self._heads :].flatten(2)

    def attend(self, q: Tensor, kv: Sequence[Tensor], tail: Sequence[Tensor] = ()) -> Tensor:
        """Queries [B, T, wide] to keys and values [B, n, wide], and further ones -> what goes into `o`."""
        q, k, v, *more = (part.unflatten(2, (self._heads, -1)) for part in (q, *kv, *tail))
        return attention(q, k, v, tail=(more[0], more[1]) if more else None)


class Block(nn.Module):
    """A layer of one of the transformers. keys_only: of the video's last one nothing else is read."""

    def __init__(self, config: ExpertConfig, wide: int, heads: int, keys_only: bool = False) -> None:
        super().__init__()
        self.eps = config.eps
        self.self_attn = Attention(config, wide, heads, keys_only)
        self.modulation = nn.Parameter(torch.zeros(1, MODULATIONS, config.width))
        if not keys_only:
            self.norm3 = nn.LayerNorm(config.width, config.eps)
            self.cross_attn = Attention(config, wide, heads)
            first, second = nn.Linear(config.width, config.mlp), nn.Linear(config.mlp, config.width)
            self.ffn = nn.Sequential(first, nn.GELU("tanh"), second)

    def forward(
        self,
        stream: ResidualStream,
        by: Tensor,
        table: Tensor,
        text: Sequence[Sequence[Tensor]],
        video: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """by [B, MODULATIONS, width], a table of `rotate`, keys and values of words and of joints, and of the
        video, if it is not the video's layer -> keys and values of the stream's rows."""
        shift, scale, gate, late_shift, late_scale, late_gate = by.unbind(dim=1)
        own, cross, ffn = self.self_attn, self.cross_attn, cast(Any, self.ffn)
        inner = stream.modulated(scale, shift, self.eps)
        q, k, v = own.rotated(inner, table)
        keys = (video, (k, v)) if video else ((k, v),)
        stream.add(own.attend(q, *keys), own.o, gate)
        inner = stream.norm(self.norm3.weight, self.norm3.bias, self.eps)
        stream.add(cross.attend(cross.queries(inner), *text), cross.o)
        stream.mlp(stream.modulated(late_scale, late_shift, self.eps), ffn[0], ffn[2], late_gate)
        return k, v


class Expert(nn.Module):
    """What a transformer has besides its layers. ends: more of that, by name."""

    def __init__(self, config: ExpertConfig, text: int, **ends: nn.Module) -> None:
        super().__init__()
        width = config.width
        self._time_dim = config.time_dim
        self.text_embedding = nn.Sequential(nn.Linear(text, width), nn.GELU("tanh"), nn.Linear(width, width))
        first, second = nn.Linear(config.time_dim, width), nn.Linear(width, width)
        self.time_embedding = nn.Sequential(first, nn.SiLU(), second)
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(width, MODULATIONS * width))
        for name, module in ends.items():
            self.add_module(name, module)

    def modulation(self, time: Tensor) -> Tensor:
        """time [B], in units of the embedding -> [B, MODULATIONS, width] in the dtype of the parameters."""
        turns = angles(time, self._time_dim // 2)
        waves = torch.cat((turns.cos(), turns.sin()), dim=1).to(next(self.parameters()).dtype)
        return self.time_projection(self.time_embedding(waves)).unflatten(1, (MODULATIONS, -1))


class Mixture(nn.Module):
    """`mot`"""

    def __init__(self, config: FastWAMConfig) -> None:
        super().__init__()
        wide, heads = config.heads * config.head_dim, config.heads

        def layer(last: bool) -> Holder:
            video = Block(config.video, wide, heads, last)
            return Holder(blocks=Holder(video=video, action=Block(config.action, wide, heads)))

        self.layers = nn.ModuleList(layer(n == config.depth - 1) for n in range(config.depth))
        text, patch = config.text.width, (1, config.patch, config.patch)
        patches = nn.Conv3d(config.vae.channels, config.video.width, patch, patch)
        encoder = nn.Linear(config.action_dim, config.action.width)
        head = nn.Linear(config.action.width, config.action_dim)
        video = Expert(config.video, text, patch_embedding=patches)
        action = Expert(config.action, text, action_encoder=encoder, head=head)
        self.mixtures = Holder(video=video, action=action)

    def blocks(self, name: str) -> list[Block]:
        """The layers of one of the transformers."""
        return [getattr(layer.blocks, name) for layer in self.layers]


class FastWAM(Network):
    """A Fast-WAM network of the given sizes, randomly initialised. Call `fold` before it is run."""

    frame_table: Tensor
    chunk_table: Tensor
    video_modulations: Tensor
    action_modulations: Tensor

    def __init__(self, config: FastWAMConfig) -> None:
        super().__init__()
        self.config = config
        self.mot, self.vae, self.text_encoder = Mixture(config), VAE(config.vae), T5Encoder(config.text)
        if config.state_dim:
            self.proprio_encoder = nn.Linear(config.state_dim, config.text.width)

    def fold(self) -> FastWAM:
        """Compute what is the same in every frame, in float32 at least, and drop what made it."""
        config, device, wide = self.config, self.device, at_least_float32(self.dtype)
        video = self.mot.mixtures.video.to(wide)
        constants = video.modulation(torch.zeros(1, device=device)).to(self.dtype)
        video.to(self.dtype)
        del video.time_embedding, video.time_projection
        pairs = config.head_dim // 2
        rows, columns = (side // config.patch for side in config.latent_size)
        turns = {
            "frame_table": frame_angles(rows, columns, pairs, device),
            "chunk_table": angles(torch.arange(config.horizon, device=device), pairs),
        }
        tables = {name: torch.stack((turn.cos(), turn.sin())).to(wide) for name, turn in turns.items()}
        plain = torch.tensor([0, 1, 0, 0, 1, 0], dtype=self.dtype, device=device)[:, None]
        for name, base in (("video", constants + plain), ("action", plain)):
            blocks = self.mot.blocks(name)
            tables[f"{name}_modulations"] = torch.stack([block.modulation + base for block in blocks], dim=1)
            for block in blocks:
                del block.modulation
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)
        self.vae.fold()
        return self

    def texts(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a prompt int64 [T] in every layer: of the video [2, depth - 1, rows,
        wide], and of the actions [2, depth, rows, wide]. Rows after the prompt are made of zeros."""
        rows = F.pad(self.text_encoder(ids), (0, 0, 0, self.config.max_prompt - len(ids)))
        return self._keys("video", rows), self._keys("action", rows)

    def prefix(self, latents: Tensor, text: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """latents [C, h, w], the video's `texts`, and state [S] if the network takes one -> keys and values
        of the frame in every layer [2, depth, n, wide], and those of the joints, which actions attend to as
        to words [2, depth, 0 or 1, wide]."""
        expert = self.mot.mixtures.video
        x = expert.patch_embedding(latents.to(self.dtype)[None, :, None]).flatten(2).transpose(1, 2)
        joints = x.new_zeros(0, self.config.text.width)
        rows = joints if state is None else self.proprio_encoder(state.to(self.dtype))[None]
        *blocks, last = self.mot.blocks("video")
        stream = residual_stream(x)
        further, results = self._keys("video", rows), list[tuple[Tensor, Tensor]]()
        for number, block in enumerate(blocks):
            words = [part[:, number, None] for part in (text, further)]
            by = self.video_modulations[:, number]
            results.append(block(stream, by, self.frame_table, words, ()))
        shift, scale = self.video_modulations[:, -1, :2].unbind(dim=1)
        k, v = last.self_attn.keys(stream.modulated(scale, shift, last.eps))
        results.append((rotate(k, self.frame_table), v))
        return torch.stack([torch.cat(side) for side in zip(*results)]), self._keys("action", rows)

    def velocity(self, x: Tensor, t: Tensor, text: Tensor, video: Tensor, joints: Tensor) -> Tensor:
        """x [B, H, A], t [B], from 1 at the noise to 0, and what `texts` and `prefix` leave for the actions,
        each [B, 2, depth, n, wide] -> velocity [B, H, A] in the dtype of x."""
        expert = self.mot.mixtures.action
        by = self.action_modulations + expert.modulation(t * self.config.time_scale)[:, None]
        stream = residual_stream(expert.action_encoder(x.to(self.dtype)))
        for number, block in enumerate(self.mot.blocks("action")):
            words = [part[:, :, number].unbind(dim=1) for part in (text, joints)]
            frame = video[:, :, number].unbind(dim=1)
            block(stream, by[:, number], self.chunk_table[:, : x.shape[1]], words, frame)
        return expert.head(stream.end()).to(x.dtype)

    def _keys(self, name: str, rows: Tensor) -> Tensor:
        """Keys and values of rows [n, text width] in the layers that attend to them [2, layers, n, wide]."""
        embedded = getattr(self.mot.mixtures, name).text_embedding(rows)
        blocks = [block for block in self.mot.blocks(name) if hasattr(block, "cross_attn")]
        return torch.stack(
            [torch.stack(side) for side in zip(*(b.cross_attn.keys(embedded) for b in blocks))]
        )
