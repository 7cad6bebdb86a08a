"""A checkpoint folder as openpi writes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from builders import make_stats, make_tokenizer

DATA = Path(__file__).parents[2] / "data" / "orbax"


def make_orbax_folder(folder: Path, kind: str) -> Path:
    shutil.copytree(DATA / kind, folder)
    (folder / "assets" / "arm").mkdir(parents=True)
    stats = {"norm_stats": {"state": make_stats(0), "actions": make_stats(1)}}
    (folder / "assets" / "arm" / "norm_stats.json").write_text(json.dumps(stats))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
