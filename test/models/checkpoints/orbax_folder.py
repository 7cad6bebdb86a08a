"""A checkpoint folder as openpi writes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from builders import make_stats, make_tokenizer

from vla_accel_ros.models.pi.orbax_checkpoint import read_arrays

DATA = Path(__file__).parents[2] / "data" / "orbax"
SETTINGS = {"pi0": "use_quantile_norm=false", "pi05": "discrete_state_input=true use_quantile_norm=true"}


def answer(folder: Path) -> str:
    """What a user says of the training of a folder: nothing where its files do."""
    if not (folder / "params").is_dir() or (folder / "config.json").is_file():
        return ""
    kind = "pi0" if any("state_proj" in str(array.name) for array in read_arrays(folder)) else "pi05"
    return f"action_horizon=50 adapt_to_pi=false delta_action_mask=none {SETTINGS[kind]}"


def make_orbax_folder(folder: Path, kind: str) -> Path:
    shutil.copytree(DATA / kind, folder)
    (folder / "assets" / "arm").mkdir(parents=True)
    stats = {"norm_stats": {"state": make_stats(0), "actions": make_stats(1)}}
    (folder / "assets" / "arm" / "norm_stats.json").write_text(json.dumps(stats))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
