"""Tables of forwards that are shared."""

from __future__ import annotations

from collections.abc import Iterator

from tables.forms import Line, result, table


@table
def pipeline() -> Iterator[Line]:
    """All that docs/lab/pipeline.md shows."""
    from grids.tables import render

    yield render(result("pipeline")).strip()
