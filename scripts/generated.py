"""Files of this repository that are made from its code: written, or compared with what they should be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(doc: str | None, script: str, documents: Mapping[Path, str]) -> int:
    """Write each file's text; with --check only tell which are out of date. Returns the exit status."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file is out of date")
    check, status = parser.parse_args().check, 0
    for path, text in documents.items():
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} is out of date; run python scripts/{script}", file=sys.stderr)
            status = 1
    return status
