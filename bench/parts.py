"""A JSON file of results whose parts are measured separately, perhaps on several machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vla_accel_ros.tools.provenance import provenance


def write(path: Path, part: str, found: dict[str, Any]) -> None:
    """Into the JSON, beside the other parts, with where and when."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[part] = found
    kept.setdefault("parts", {})[part] = provenance()
    path.write_text(json.dumps(kept, indent=1) + "\n")
