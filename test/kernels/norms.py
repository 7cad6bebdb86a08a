"""Norms of rows and tables of angles for tests of products."""

from __future__ import annotations

import torch
from drawing import Drawing, assert_near

from vla_accel_ros.kernels.reference.linear import Norm


def tables_of(draw: Drawing, rows: int, *widths: int) -> list[torch.Tensor | None]:
    return [draw(rows, width, spread=0.3) if rows else None for width in widths]


def norm_of(x: torch.Tensor, scale: torch.Tensor | None, filled: bool = True) -> Norm:
    """The norm of rows x, as who made them leaves it, or with nothing in it yet."""
    norm = Norm.of(x, scaled=scale is not None)._replace(scale=scale)
    if filled:
        norm.leave(x)
    else:
        norm.squares.fill_(float("nan"))
        if norm.scaled is not None:
            norm.scaled.fill_(float("nan"))
    return norm


def assert_norms_near(ours: Norm, expected: Norm, rows: int, dtype: torch.dtype) -> None:
    """Of the squares only each row's sum is defined."""
    assert_near(ours.squares.sum(0)[:rows], expected.squares.sum(0)[:rows], dtype)
    if expected.scaled is not None:
        assert ours.scaled is not None
        assert_near(ours.scaled, expected.scaled, dtype)


def chosen_rows(draw: Drawing, at: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A table of seven rows, which are not adjacent in memory, and those rows of it that `at` says."""
    table = draw(7, 3, width, spread=0.3)[:, 1]
    return table, table[at.long()].contiguous()
