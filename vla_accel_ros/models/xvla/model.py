"""X-VLA in plain torch: the reference that every faster path is compared with.

The main view's image tokens and all ids of the prompt, padding included, go through a BART encoder; the other
views' tokens go past it. A flow step runs the transformer over the actions, these rows and the domain's soft
prompts: nothing of the prefix can be kept as keys and values, because its rows attend to the actions. It
predicts the clean actions, not a velocity. Nothing is masked anywhere, as in the reference. What belongs to a
domain (a kind of robot) are rows of tables, so that robots of different domains share a batch.

Parameter names are those of lerobot's policy with transformers' Florence-2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers import vision
from vla_accel_ros.models.layers.dit import sinusoid
from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.residual import ResidualStream, residual_stream
from vla_accel_ros.models.layers.vision import MLP
from vla_accel_ros.models.layers.vit import Attention
from vla_accel_ros.models.network import Network
from vla_accel_ros.models.xvla.config import BartConfig, XVLAConfig
from vla_accel_ros.models.xvla.davit import DaViT

UNUSED_POSITIONS = 2
"""Of BART's position table, before those of the tokens."""
SLOWEST = 100.0
"""Ratio of the greatest to the least frequency of the time embedding."""


class BartLayer(nn.Module):
    """A post-norm layer of BART."""

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        self.self_attn = BartAttention(config.width, config.heads)
        self.self_attn_layer_norm = nn.LayerNorm(config.width)
        self.fc1, self.fc2 = nn.Linear(config.width, config.mlp), nn.Linear(config.mlp, config.width)
        self.final_layer_norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.self_attn_layer_norm(x + self.self_attn(x))
        return self.final_layer_norm(x + self.fc2(F.gelu(self.fc1(x))))


class BartAttention(vision.Attention):
    """Full self-attention with biases, and its last product."""

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class BartEncoder(nn.Module):
    """Rows [B, T, W] -> features [B, T, W]."""

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.width)
        self.embed_positions = nn.Embedding(config.max_positions + UNUSED_POSITIONS, config.width)
        self.layernorm_embedding = nn.LayerNorm(config.width)
        self.layers = nn.ModuleList(BartLayer(config) for _ in range(config.depth))

    def forward(self, x: Tensor) -> Tensor:
        positions = self.embed_positions.weight[UNUSED_POSITIONS : UNUSED_POSITIONS + x.shape[1]]
        x = self.layernorm_embedding(x + positions)
        for layer in self.layers:
            x = layer(x)
        return x


class PositionEmbedding(nn.Module):
    """Half of the channels tell the column, the others the row."""

    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.row_embeddings = nn.Embedding(positions, width // 2)
        self.column_embeddings = nn.Embedding(positions, width - width // 2)

    def forward(self, x: Tensor) -> Tensor:
        height, breadth = x.shape[2:]
        columns = self.column_embeddings.weight[:breadth].expand(height, -1, -1)
        rows = self.row_embeddings.weight[:height, None].expand(-1, breadth, -1)
        return x + torch.cat((columns, rows), dim=2).permute(2, 0, 1)


class FrameEmbedding(nn.Module):
    """The sinusoidal table of frames, of which there is one here."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.pos_idx_to_embed = nn.Parameter(torch.zeros(frames, width))


class Projector(nn.Module):
    """Features [N, C, h, w] -> image tokens [N, 1 + h * w, W]; the first is their mean."""

    def __init__(self, config: XVLAConfig) -> None:
        super().__init__()
        vision = config.vision
        self.image_projection = nn.Linear(vision.widths[-1], config.text.width, bias=False)
        self.image_proj_norm = nn.LayerNorm(config.text.width)
        self.image_position_embed = PositionEmbedding(vision.widths[-1], vision.max_positions)
        self.visual_temporal_embed = FrameEmbedding(vision.widths[-1], vision.max_frames)

    def forward(self, x: Tensor) -> Tensor:
        x = self.image_position_embed(x).flatten(2).transpose(1, 2)
        x = x + self.visual_temporal_embed.pos_idx_to_embed[0]
        return self.image_proj_norm(self.image_projection(torch.cat((x.mean(dim=1, keepdim=True), x), dim=1)))


class DomainLinear(nn.Module):
    """A linear layer with a matrix and a bias of its own for each domain; matrices are stored as rows of a
    table, from input to output."""

    def __init__(self, inner: int, outer: int, domains: int) -> None:
        super().__init__()
        self.fc, self.bias = nn.Embedding(domains, inner * outer), nn.Embedding(domains, outer)

    def forward(self, x: Tensor, domain: Tensor) -> Tensor:
        """x [B, T, inner], domain int [B] -> [B, T, outer]."""
        weight = self.fc.weight[domain].unflatten(1, (x.shape[2], -1))
        return torch.baddbmm(self.bias.weight[domain][:, None], x, weight)


class Layer(nn.Module):
    """A pre-norm layer."""

    def __init__(self, config: XVLAConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attn = Attention(config.width, config.heads)
        self.mlp = MLP(config.width, config.mlp)

    def forward(self, stream: ResidualStream, rows: int) -> None:
        """rows: how many of the first ones go on; the others are only read."""
        first, second = self.norm1, self.norm2
        attended = self.attn(stream.norm(first.weight, first.bias, first.eps), rows)
        stream.keep(slice(rows))
        stream.add(attended, self.attn.proj)
        stream.mlp(stream.norm(second.weight, second.bias, second.eps), self.mlp.fc1, self.mlp.fc2)


class Transformer(nn.Module):
    """`transformer`: a flow step."""

    def __init__(self, config: XVLAConfig) -> None:
        super().__init__()
        width, text, domains = config.width, config.text.width, config.domains
        self._config = config
        if config.domain_projections:
            self.vlm_proj: nn.Module = DomainLinear(text, width, domains)
            self.aux_visual_proj: nn.Module = DomainLinear(text, width, domains)
        else:
            self.vlm_proj, self.aux_visual_proj = nn.Linear(text, width), nn.Linear(text, width)
        self.pos_emb = nn.Parameter(torch.zeros(1, config.max_positions, width))
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width)
        inner = config.action_dim + config.state_dim + config.time_dim
        self.action_encoder = DomainLinear(inner, width, domains)
        self.action_decoder = DomainLinear(width, config.action_dim, domains)
        if config.prompts:
            self.soft_prompt_hub = nn.Embedding(domains, config.prompts * width)

    def rows(self, words: Tensor, others: Tensor, domain: Tensor) -> Tensor:
        """Return what every step adds to its actions [B, P, W]: projected features of the prefix with their
        positions, and the soft prompts of domain int [B]."""
        own = (domain,) if self._config.domain_projections else ()
        rows = torch.cat((self.vlm_proj(words, *own), self.aux_visual_proj(others, *own)), dim=1)
        first = self._config.horizon
        rows = rows + self.pos_emb[:, first : first + rows.shape[1]]
        if not self._config.prompts:
            return rows
        prompts = self.soft_prompt_hub.weight[domain].unflatten(1, (self._config.prompts, -1))
        return torch.cat((rows, prompts), dim=1)

    def forward(self, x: Tensor, t: Tensor, state: Tensor, rows: Tensor, domain: Tensor) -> Tensor:
        """x [B, H, A], t [B], state [B, S], rows [B, P, W] -> clean actions [B, H, A], in the dtype of x."""
        horizon, dtype = x.shape[1], self.pos_emb.dtype
        half = self._config.time_dim // 2
        sin, cos = sinusoid(t.to(dtype), half, half, SLOWEST)
        about = torch.cat((state.to(dtype), cos.to(dtype), sin.to(dtype)), dim=1)
        inner = torch.cat((x.to(dtype), about[:, None].expand(-1, horizon, -1)), dim=2)
        actions = self.action_encoder(inner, domain) + self.pos_emb[:, :horizon]
        hidden = torch.cat((actions, rows), dim=1)
        stream, last = residual_stream(hidden), self.blocks[-1]
        for layer in self.blocks:
            layer(stream, horizon if layer is last else hidden.shape[1])
        hidden = stream.norm(self.norm.weight, self.norm.bias, self.norm.eps)
        return self.action_decoder(hidden, domain).to(x.dtype)


class XVLA(Network):
    """An X-VLA network of the given sizes, randomly initialised."""

    def __init__(self, config: XVLAConfig) -> None:
        super().__init__()
        self.config = config
        self.vlm = Holder(
            vision_tower=DaViT(config.vision),
            multi_modal_projector=Projector(config),
            language_model=Holder(encoder=BartEncoder(config.text)),
        )
        self.transformer = Transformer(config)

    def encode(self, images: Tensor) -> Tensor:
        """images float [N, 3, S, S], normalised -> image tokens [N, n, W]."""
        images = images.to(self.transformer.pos_emb.dtype)
        return self.vlm.multi_modal_projector(self.vlm.vision_tower(images))

    def prefix(self, images: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """image tokens of the views that there are [B, V, n, W], ids int64 [B, L], with padding -> features
        of the main view and the prompt [B, n + L, W], and of the other views [B, (views - 1) n, W]; those of
        absent views are 0."""
        encoder = self.vlm.language_model.encoder
        words = encoder(torch.cat((images[:, 0], encoder.embed_tokens(ids)), dim=1))
        others = images[:, 1:].flatten(1, 2)
        absent = (self.config.views - images.shape[1]) * images.shape[2]
        return words, F.pad(others, (0, 0, 0, absent))

    def denoise(self, x: Tensor, t: Tensor, state: Tensor, rows: Tensor, domain: Tensor) -> Tensor:
        """Predict the clean actions; see Transformer."""
        return self.transformer(x, t, state, rows, domain)
