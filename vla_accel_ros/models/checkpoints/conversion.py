"""Convert any known checkpoint into our own folder format, which loads faster and records its source.

The source's small files are copied. Beside them are written:
`model.safetensors`: the stored numbers, bit for bit, under our names. Projections that the engine reads as
    one tensor are stored as one (fused.py), and the header names their parts. Tensors that no code path reads
    are left out. `plain` keeps one tensor for each parameter, for other tools.
`config.json`: the source's config, our sizes ("vla_accel_ros") and the provenance: the source's name, format
    and SHA-256 of every file, the SHA-256 of the new weights, version and date.

A LoRA adapter can be merged (adapters.py). Its folder's small files then replace the base's, since statistics
and settings belong to a training.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from vla_accel_ros.models.checkpoints.adapters import CONFIG, WEIGHTS, Adapter
from vla_accel_ros.models.checkpoints.checkpoint import find_format
from vla_accel_ros.models.checkpoints.checksum import sha256
from vla_accel_ros.models.checkpoints.fields import OURS, PROVENANCE
from vla_accel_ros.models.checkpoints.formats import Contents, Weights
from vla_accel_ros.models.checkpoints.safetensors_writer import write_safetensors
from vla_accel_ros.models.checkpoints.shards import PICKLED, SINGLE, Stored, inside
from vla_accel_ros.models.checkpoints.streaming import Progress, is_finite
from vla_accel_ros.models.config import TRAINED_AS
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.pi.training import ask

SMALL = (
    "assets/**/norm_stats.json",
    "backbone/*",
    "dataset_statistics.json",
    "dataset_statistics/*.json",
    "dataset_stats.json",
    "eagle_assets/*",
    "embodiment_id.json",
    "fast_tokenizer/*",
    "paligemma_tokenizer.model",
    "policy_*.json",
    "policy_*.safetensors",
    "preprocessor_config.json",
    "processor_config.json",
    "statistics.json",
    "text_encoder/*.json",
    "tokenizer*",
    "tokenizer/*",
    "train_config.json",
)
"""Files that some format reads besides config.json and the weights; the processors may name further ones."""
TOKENIZER = ("tokenizer*", "tokenizer/*")
STATISTICS = ("policy_preprocessor.json", "dataset_statistics.json", "assets/**/norm_stats.json")
"""Those of them with the statistics of a training."""


def convert(
    source: str | Path,
    out: str | Path,
    progress: Progress | None = None,
    plain: bool = False,
    trained_as: str = "",
    adapter: str | Path | None = None,
) -> Path:
    """Write the checkpoint `source` as the new folder `out`, and return `out`.

    progress: called with the bytes written of the weights. plain: store no projections as one.
    trained_as: as in load_policy; `out` keeps these settings, so that nothing is asked of it. adapter: a
    folder of peft with a LoRA adapter of `source`, to be merged.
    Raises ValueError, with one sentence, if `source` could not be loaded; FileExistsError if `out` exists.
    `out` appears only once it is complete.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} is there already and is not overwritten; name a folder that is not.")
    partial = out.with_name(out.name + ".partial")
    if partial.exists():
        raise FileExistsError(f"{partial} is left of a conversion that was broken off; remove it.")
    base = contents = Contents.of(source, trained_as)
    lora = None if adapter is None else Adapter.of(Path(adapter))
    partial.mkdir(parents=True)
    try:
        hashes = _copy_small(base.folder, partial)
        if lora is not None:
            find_format(base).describe(base, None)
            contents = _with_adapter(base, lora, partial)
        family = find_format(contents)
        description = family.describe(contents, None)
        statistics = description.statistics if len(description.statistics) > 1 else ()
        for name in statistics:  # no statistics need be chosen for a conversion, but each must be complete
            description = family.describe(contents, name)
            _whole(description.missing)
        if not statistics:
            _whole(description.missing)
        if description.unknown:
            raise ask(contents.folder, description.unknown)
        weights = family.weights(contents)
        if weights.beside is not None:
            hashes |= _copy_small(weights.beside, partial, TOKENIZER)
        layout = {name: (stored.dtype, stored.shape) for name, stored in weights.stored.items()}
        values, fused = _finite(weights.values, source), {} if plain else _fusible(weights)
        digest = write_safetensors(partial / SINGLE, layout, values, progress=progress, fused=fused)
        hashes |= {name: sha256(base.folder / name) for name in _weight_files(base, weights.stored)}
        provenance = {
            "source": base.folder.resolve().name,
            "format": description.format,
            "sha256": digest,
            "source_sha256": dict(sorted(hashes.items())),
            "version": _version(),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds"),
        }
        if lora is not None:
            files = {name: sha256(lora.folder / name) for name in (CONFIG, WEIGHTS)}
            provenance["adapter"] = {"source": lora.folder.resolve().name, "sha256": files}
        if PROVENANCE in base.config:
            provenance["before"] = base.config[PROVENANCE]
        sizes = {
            **description.config.to_json(),
            **({TRAINED_AS: description.trained_as} if description.trained_as else {}),
        }
        config = {**contents.config, OURS: sizes, PROVENANCE: provenance}
        (partial / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return out


def has_statistics(folder: Path) -> bool:
    """Return whether a folder has the statistics of a training, in a file of their own."""
    return any(True for pattern in STATISTICS for _ in folder.glob(pattern))


def _with_adapter(base: Contents, lora: Adapter, folder: Path) -> Contents:
    """Return the merged checkpoint, its small files in `folder`, which has the base's: those of the adapter's
    training replace them. Raises ValueError if the adapter does not fit."""
    if has_statistics(lora.folder):
        for path in {path for pattern in (*STATISTICS, "policy_*") for path in folder.glob(pattern)}:
            path.unlink()
    _copy_small(lora.folder, folder)
    file = lora.folder / "config.json"
    config = read_json(file) if file.is_file() else dict(base.config)
    config |= {name: False for name in ("use_peft",) if name in config}
    (folder / "config.json").write_text(json.dumps(config))
    return replace(base, folder=folder, config=config, tensors=lora.merged(base.table, str(base.folder)))


def verify(folder: str | Path, progress: Callable[[int], object] = lambda count: None) -> dict[str, str]:
    """Check that the weights are still those that were converted; return the SHA-256 of each of their files.

    progress: called with the byte count of each block read. Raises ValueError if a file differs, or if the
    folder records no SHA-256.
    """
    path, digest = Path(folder) / SINGLE, provenance_of(folder).get("sha256")
    if not isinstance(digest, str):
        file = Path(folder) / "config.json"
        raise ValueError(f"{file} has no {PROVENANCE}.sha256, so nothing to compare with; convert it.")
    if not path.is_file():
        raise ValueError(f"{path} is not there, but its config.json names it; copy or convert it again.")
    actual = sha256(path, progress)
    if actual != digest:
        raise ValueError(
            f"{path} is not what was converted (SHA-256 {actual[:12]}..., not {digest[:12]}...); "
            "copy or convert it again."
        )
    return {SINGLE: actual}


def provenance_of(folder: str | Path) -> dict[str, Any]:
    """Return the provenance of a converted folder; {} for any other folder."""
    file = Path(folder) / "config.json"
    provenance = read_json(file).get(PROVENANCE) if file.is_file() else None
    return provenance if isinstance(provenance, dict) else {}


def _fusible(weights: Weights) -> dict[str, tuple[str, ...]]:
    """Return the fusible groups whose parts share one stored dtype; other parts must keep their own."""
    return {
        whole: parts
        for whole, parts in weights.fused.items()
        if len({weights.stored[part].dtype for part in parts}) == 1
    }


def _whole(missing: tuple[str, ...]) -> None:
    if missing:
        raise ValueError(missing[0])


def _finite(values: Iterator[tuple[str, Tensor]], source: str | Path) -> Iterator[tuple[str, Tensor]]:
    for name, value in values:
        if not is_finite(value):
            raise ValueError(f"{source}: not every number is finite in {name}; copy or train it again.")
        yield name, value


def _copy_small(source: Path, target: Path, patterns: Sequence[str] = SMALL) -> dict[str, str]:
    """Copy the small files; return the SHA-256 of each, and of config.json."""
    named = {state for file in source.glob("policy_*processor.json") for state in _named(read_json(file))}
    files = {path for pattern in patterns for path in source.glob(pattern)} | {
        source / name for name in named
    }
    hashes = {"config.json": sha256(source / "config.json")} if (source / "config.json").is_file() else {}
    for path in sorted(files):
        if path.is_file() and path.suffix not in PICKLED:
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
    """Return the files that hold the weights, relative to the folder, which some may be beside."""
    files = {entry.file for entry in (*contents.tensors.values(), *stored.values())}
    whole = {path for file in files for path in ([file] if file.is_file() else file.rglob("*"))}
    return sorted(Path(os.path.relpath(path, contents.folder)).as_posix() for path in whole if path.is_file())


def _version() -> str:
    try:
        return metadata.version("vla_accel_ros")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"
