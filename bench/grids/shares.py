"""Divides a plan between several processes, each with its own GPU.

Cells that are compared with the same baseline form a group, and one process measures a group: a figure and
its baseline are from one GPU and one run. Groups are assigned by their estimated time, the longest first,
always to the process with the least work, including the models that it would have to make. Every process
computes the same shares by itself, from the plan alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Group(NamedTuple):
    """Cells by name; seconds: about, on an H200. Only the balance of the shares depends on them."""

    cells: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Share:
    """Share `number` of `count`, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def share(text: str) -> Share:
    """Of "2/4". Raises argparse.ArgumentTypeError for anything else."""
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return Share(int(number), int(count))
    raise argparse.ArgumentTypeError(f"'{text}' is no share: give I/N, from 1/N to N/N")


def dealt(
    parts: Mapping[str, Sequence[Group]], set_up_s: Mapping[str, float], count: int
) -> list[dict[str, frozenset[str]]]:
    """For each of `count` processes, the cells of each part. set_up_s: of making a part's model."""
    loads = [0.0] * count
    shares: list[dict[str, set[str]]] = [{name: set() for name in parts} for _ in range(count)]
    groups = [(name, group) for name, found in parts.items() for group in found]
    for name, group in sorted(groups, key=lambda pair: -pair[1].seconds):
        costs = [
            load + group.seconds + (0.0 if mine[name] else set_up_s[name])
            for load, mine in zip(loads, shares, strict=True)
        ]
        least = costs.index(min(costs))
        loads[least] = costs[least]
        shares[least][name].update(group.cells)
    return [{name: frozenset(cells) for name, cells in mine.items()} for mine in shares]
