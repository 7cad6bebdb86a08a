"""Reads YAML from others, with limits on its length and on the number of values behind its aliases.

With aliases a few lines can stand for more values than any memory holds, and a merge key (<<) copies them.
The values are therefore counted before any is constructed. libyaml scans the text, ten times as fast as
PyYAML's own scanner; its composer crashes the process on a deeply nested document, so PyYAML's composes.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

MOST_BYTES = 128 << 10
"""Limit for a contract or a calibration, which have some kB."""
MOST_LISTING_BYTES = 512 << 10
"""Limit for a bag's metadata.yaml: all topics of a large robot, and a thousand files."""
MOST_VALUES = 200_000


class Loader(Composer, CParser, SafeConstructor, Resolver):
    """Like yaml.SafeLoader, scanned by libyaml."""

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        for base in (Composer, SafeConstructor, Resolver):
            base.__init__(self)


def load(text: str, loader: type[Loader] = Loader, most_bytes: int = MOST_BYTES) -> Any:
    """The value of a document. Raises yaml.YAMLError, or RecursionError if it is nested too deeply."""
    if len(text) > most_bytes:
        raise yaml.YAMLError(f"it has {len(text)} characters, at most {most_bytes} are read")
    reading = loader(text)
    try:
        node = reading.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {MOST_VALUES} values")
        return reading.construct_document(node)
    finally:
        reading.dispose()


def _values(node: yaml.Node, counted: dict[int, int]) -> int:
    """Number of values in a node; aliased values count as often as they are used."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in counted:
        return counted[id(node)]
    counted[id(node)] = MOST_VALUES + 1  # for an alias to an enclosing node, which never ends
    children = node.value if isinstance(node, yaml.SequenceNode) else [n for pair in node.value for n in pair]
    counted[id(node)] = 1 + sum(_values(child, counted) for child in children)
    return counted[id(node)]
