"""Any known checkpoint as a folder of ours: one file of weights under our names, and where it comes from.

The layout is the source's own small files, copied, with `model.safetensors` beside them and a config.json
that also has our sizes ("vla_accel_ros") and the provenance: the source's name, format and SHA-256 of every
file, the SHA-256 of the new weights, version and date. Numbers are kept as they are stored, so that what is
loaded is the same to the bit; what no path reads is left out. Nothing is folded or fused here: that is
computed when a model is loaded (folded.py), and the folder stays one that other tools read.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.models.checkpoint import find_format
from vla_accel_ros.models.formats import OURS, Contents
from vla_accel_ros.models.norm_stats import read_json
from vla_accel_ros.models.options import Progress
from vla_accel_ros.models.safetensors_writer import write_safetensors
from vla_accel_ros.models.shards import SINGLE, Stored, inside

PROVENANCE = "provenance"
SMALL = (
    "assets/**/norm_stats.json",
    "dataset_statistics.json",
    "paligemma_tokenizer.model",
    "policy_*.json",
    "policy_*.safetensors",
    "preprocessor_config.json",
    "tokenizer*",
    "tokenizer/*",
)
"""Beside config.json and the weights, what any format reads; and every file that the processors name."""
CHUNK = 1 << 24


def convert(source: str | Path, out: str | Path, progress: Progress | None = None) -> Path:
    """Write the folder `out`, which must not be there. Returns it.

    Raises ValueError, one sentence, for a source that could not be loaded; FileExistsError if `out` is there.
    `out` appears when it is whole.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} is there already and is not overwritten; name a folder that is not.")
    contents = Contents.of(source)
    known = find_format(contents)
    told = known.describe(contents, None)
    statistics = told.statistics if len(told.statistics) > 1 else ()
    for name in statistics:  # a set need not be chosen to be converted; each must be whole
        told = known.describe(contents, name)
        _whole(told.missing)
    if not statistics:
        _whole(told.missing)
    weights = known.weights(contents)
    partial = out.with_name(out.name + ".partial")
    if partial.exists():
        raise FileExistsError(f"{partial} is left of a conversion that was broken off; remove it.")
    partial.mkdir(parents=True)
    try:
        hashes = _copy_small(contents.folder, partial)
        layout = {name: (stored.dtype, stored.shape) for name, stored in weights.stored.items()}
        digest = write_safetensors(partial / SINGLE, layout, _finite(weights.values, source), None, progress)
        hashes |= {name: sha256(contents.folder / name) for name in _weight_files(contents, weights.stored)}
        config = {
            **contents.config,
            OURS: told.config.to_json(),
            PROVENANCE: {
                "source": contents.folder.resolve().name,
                "format": told.format,
                "sha256": digest,
                "source_sha256": dict(sorted(hashes.items())),
                "version": _version(),
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds"),
            },
        }
        (partial / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return out


def verify(folder: str | Path, progress: Callable[[int], object] = lambda count: None) -> str:
    """Whether the weights are still those that were converted; returns their SHA-256.

    progress: gets the bytes of each piece that was read. Raises ValueError if they are not, or the folder
    does not say what they were.
    """
    file = Path(folder) / "config.json"
    said = read_json(file).get(PROVENANCE)
    expected = said.get("sha256") if isinstance(said, dict) else None
    if not isinstance(expected, str):
        raise ValueError(f"{file} has no {PROVENANCE}.sha256, so nothing to compare with; convert it.")
    found = sha256(Path(folder) / SINGLE, progress)
    if found != expected:
        raise ValueError(
            f"{Path(folder) / SINGLE} is not what was converted (SHA-256 {found[:12]}..., not "
            f"{expected[:12]}...); copy or convert it again."
        )
    return found


def sha256(file: Path, progress: Callable[[int], object] = lambda count: None) -> str:
    """Of a file's bytes."""
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        while piece := opened.read(CHUNK):
            digest.update(piece)
            progress(len(piece))
    return digest.hexdigest()


def _whole(missing: tuple[str, ...]) -> None:
    if missing:
        raise ValueError(missing[0])


def _finite(values: Iterator[tuple[str, Tensor]], source: str | Path) -> Iterator[tuple[str, Tensor]]:
    for name, value in values:
        if not bool(torch.stack(torch.aminmax(value)).isfinite().all()):
            raise ValueError(f"{source}: not every number is finite in {name}; copy or train it again.")
        yield name, value


def _copy_small(source: Path, target: Path) -> dict[str, str]:
    """Copies what formats read beside weights and config.json; returns the SHA-256 of each, and config's."""
    named = {state for file in source.glob("policy_*processor.json") for state in _named(read_json(file))}
    files = {path for pattern in SMALL for path in source.glob(pattern)} | {source / name for name in named}
    hashes = {"config.json": sha256(source / "config.json")} if (source / "config.json").is_file() else {}
    for path in sorted(files):
        if path.is_file():
            name = path.relative_to(source)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(inside(source, path), target / name)
            hashes[name.as_posix()] = sha256(path)
    return hashes


def _named(processors: Mapping[str, Any]) -> list[str]:
    steps = processors.get("steps")
    steps = steps if isinstance(steps, list) else []
    states = [step.get("state_file") for step in steps if isinstance(step, dict)]
    return [state for state in states if isinstance(state, str) and Path(state).name == state]


def _weight_files(contents: Contents, stored: Mapping[str, Stored]) -> list[str]:
    """The files that the weights were read from, relative to the folder."""
    files = {entry.file for entry in (contents.tensors or stored).values()}
    whole = {path for file in files for path in ([file] if file.is_file() else file.rglob("*"))}
    return sorted(path.relative_to(contents.folder).as_posix() for path in whole if path.is_file())


def _version() -> str:
    try:
        return metadata.version("vla_accel_ros")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"
