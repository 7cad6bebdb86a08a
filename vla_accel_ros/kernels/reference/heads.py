"""Norms and rotary positions of queries and keys, in plain torch: the reference of triton/heads.py."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-6


def rotate_heads(
    x: Tensor,
    queries: int,
    cos: Tensor | None,
    sin: Tensor | None,
    out: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = EPS,
    whole: bool = False,
    paired: bool = False,
) -> None:
    """out = queries and keys of a product, normalised and rotated.

    x [B, n, heads, D], whose rows may lie apart: the first `queries` heads are queries, the others keys; out
    alike, contiguous. cos, sin [n, D / 2], whose rows may lie apart; None = nothing turns. norms: weights of
    the root mean square norms of queries and of keys, [D] for each head alone or, if whole, [heads * D] over
    all heads of the kind; None = no norm. paired: neighbouring numbers turn, else those of both halves.
    """
    wide, size = x.float(), x.shape[3]
    if norms is not None:
        parts = list[Tensor]()
        for part, weight in zip((wide[:, :, :queries], wide[:, :, queries:]), norms, strict=True):
            if part.shape[2] == 0:
                continue
            dims = (2, 3) if whole else (3,)
            factor = torch.rsqrt(part.square().mean(dims, keepdim=True) + eps)
            parts.append(part * factor * weight.float().view(-1 if whole else 1, size))
        wide = torch.cat(parts, dim=2)
    if cos is None or sin is None:
        out.copy_(wide)
        return
    turned = wide.unflatten(3, (-1, 2)) if paired else wide.unflatten(3, (2, -1)).transpose(3, 4)
    first, second = turned.unbind(4)
    c, s = cos[:, None], sin[:, None]
    pairs = torch.stack((first * c - second * s, second * c + first * s), dim=4)
    out.copy_((pairs if paired else pairs.transpose(3, 4)).flatten(3))
