"""The packages that only export needs, imported when it runs, or one sentence about how to have them."""

from __future__ import annotations

import importlib
from typing import Any


def av() -> Any:
    """PyAV, which encodes videos."""
    return _import("av")


def arrow() -> Any:
    """pyarrow; pyarrow.parquet is loaded with it."""
    _import("pyarrow.parquet")
    return _import("pyarrow")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeError(f"export needs pyarrow and av ({error}): pip install pyarrow av") from error
