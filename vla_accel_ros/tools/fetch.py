"""`vla fetch NAME`: a published checkpoint into a folder, with its tokenizer and statistics.

OWNER/NAME[@REVISION] is of the Hugging Face hub, gs://BUCKET/PATH of Google's public storage, and the name of
a public configuration of openpi (`--as`) is that of its checkpoint there. Only weights that hold no code are
taken, and JSON. A folder that is complete is used again without a network; where there is none, the error has
the commands for a machine that has one.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from vla_accel_ros.tools.options import subcommand

OPENPI, TOKENIZER = "gs://openpi-assets/checkpoints", "gs://big_vision/paligemma_tokenizer.model"
WANTED = ("*.safetensors", "*.json", "*.model")
"""Of a hub's repository; pickled files and code are never used."""
MARK = ".fetched.json"
"""In a complete folder: its source, and the size of each file."""
_TIMEOUT_S, _BLOCK = 30.0, 1 << 20


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "fetch", "download a published checkpoint, with its tokenizer", run)
    add = parser.add_argument
    add(
        "name",
        metavar="NAME",
        help="OWNER/NAME[@REVISION] of the hub, gs://BUCKET/PATH, or openpi's name, such as pi05_libero",
    )
    add("--output", type=Path, metavar="DIR", help="its folder (default: below ~/.cache/vla_accel_ros)")


def run(arguments: argparse.Namespace) -> int:
    """Fetch, and print the folder and what to type next."""
    from vla_accel_ros.models.pi.training import PUBLIC

    name = arguments.name.rstrip("/")
    source = f"{OPENPI}/{name}" if name in PUBLIC else name
    parts = PurePosixPath(source.removeprefix("gs://")).parts
    if ".." in parts or len(parts) < 2 or (not source.startswith("gs://") and len(parts) != 2):
        raise ValueError(f"{name!r} is no checkpoint: give OWNER/NAME, gs://BUCKET/PATH or an openpi name")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder: Path = arguments.output or cache / "vla_accel_ros" / Path(*parts)
    if not _complete(folder, source):
        files = _from_storage(source, folder) if source.startswith("gs://") else _from_hub(source, folder)
        files += _tokenizer(folder)
        sizes = {file: (folder / file).stat().st_size for file in files}
        (folder / MARK).write_text(json.dumps({"source": source, "files": sizes}))
    print(f"{source} is in {folder}")
    trained_as = f" --as {parts[-1]}" if parts[-1] in PUBLIC and source.startswith(OPENPI) else ""
    print(f"next: vla inspect {folder}{trained_as}")
    return 0


def _complete(folder: Path, source: str) -> bool:
    """Return whether a folder has all that was fetched from a source. Raises FileExistsError if it is of
    another."""
    if not (folder / MARK).is_file():
        return False
    mark = json.loads((folder / MARK).read_text())
    if mark["source"] != source:
        raise FileExistsError(f"{folder} holds {mark['source']}: give another --output")
    return all((folder / f).is_file() and (folder / f).stat().st_size == n for f, n in mark["files"].items())


def _from_hub(source: str, folder: Path, below: tuple[str, ...] = ("",)) -> list[str]:
    """Download a repository's files whose names begin with one of `below`; return their names."""
    try:
        from huggingface_hub import HfApi, errors, hf_hub_download
    except ImportError as error:
        raise RuntimeError(f"the hub needs huggingface_hub ({error}): pip install huggingface_hub") from error

    name, _, revision = source.partition("@")
    try:
        info = HfApi().model_info(name, revision=revision or None, timeout=_TIMEOUT_S)
        published = [each.rfilename for each in info.siblings or ()]
        files = [file for file in published if _is_wanted(file) and file.startswith(below)]
        for file in files:
            hf_hub_download(name, file, revision=info.sha, local_dir=folder)
    except errors.GatedRepoError as error:
        page = f"https://huggingface.co/{name}"
        raise PermissionError(f"{name} is gated: accept its terms at {page}, then hf auth login") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ValueError(
            f"the hub has no {source}: check the name; if it is private, hf auth login"
        ) from error
    except Exception as error:  # each of its HTTP clients has its own
        option = f" --revision {revision}" * bool(revision)
        raise _unreachable(source, f"hf download {name}{option} --local-dir", folder, error) from error
    if not any(file.endswith(".safetensors") for file in files):
        listed = ", ".join(published[:8]) or "nothing"
        raise ValueError(f"{source} has no safetensors, but {listed}: give a repository that has")
    return files


def _is_wanted(file: str) -> bool:
    path = PurePosixPath(file)
    return ".." not in path.parts and not path.is_absolute() and any(map(path.match, WANTED))


def _from_storage(source: str, folder: Path) -> list[str]:
    """Download all objects below a gs:// address, or the one at it; return their names below the folder."""
    from vla_accel_ros.models.checkpoints.progress import Meter

    bucket, _, prefix = source.removeprefix("gs://").partition("/")
    try:
        objects = [each for each in _objects(bucket, prefix) if not each["name"].endswith("/")]
        names = [PurePosixPath(each["name"]).relative_to(PurePosixPath(prefix).parent) for each in objects]
        alone = len(objects) == 1 and objects[0]["name"] == prefix
        names = names if alone else [PurePosixPath(*name.parts[1:]) for name in names]
        if any(".." in name.parts for name in names):
            raise ValueError(f"{source} has a file outside of its folder: give another address")
        total, done = sum(int(each["size"]) for each in objects), 0
        with Meter(f"fetching {source}") as meter:
            for each, name in zip(objects, names):
                _download(bucket, each, folder / name)
                done += int(each["size"])
                meter(done, total)
    except OSError as error:
        command = "cp" if source == TOKENIZER else "rsync -r"
        raise _unreachable(source, f"gcloud storage {command} {source}", folder, error) from error
    if not objects:
        raise ValueError(f"{source} is empty: check the address")
    return [str(name) for name in names]


def _objects(bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """List the objects at or below a prefix, by the storage's JSON interface."""
    query = {"prefix": prefix}
    while True:
        with _open(f"{bucket}/o?{urllib.parse.urlencode(query)}") as answer:
            listing = json.load(answer)
        yield from (o for o in listing.get("items", ()) if f"{o['name']}/".startswith(f"{prefix}/"))
        if "nextPageToken" not in listing:
            return
        query["pageToken"] = listing["nextPageToken"]


def _download(bucket: str, listed: dict[str, Any], path: Path) -> None:
    """Download an object, unless an earlier call has; raises OSError if it arrives damaged."""
    if path.is_file() and path.stat().st_size == int(listed["size"]):
        return
    wanted = base64.b64decode(listed["md5Hash"]) if "md5Hash" in listed else None
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, digest = path.with_name(f"{path.name}.partial"), hashlib.md5()
    url = f"{bucket}/o/{urllib.parse.quote(listed['name'], safe='')}?alt=media"
    with _open(url) as answer, partial.open("wb") as file:
        while block := answer.read(_BLOCK):
            digest.update(block)
            file.write(block)
    if partial.stat().st_size != int(listed["size"]) or wanted not in (None, digest.digest()):
        raise OSError(f"{listed['name']} arrived damaged")
    partial.replace(path)


def _open(path: str) -> Any:
    host = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")
    return urllib.request.urlopen(f"{host}/storage/v1/b/{path}", timeout=_TIMEOUT_S)


def _tokenizer(folder: Path) -> list[str]:
    """Fetch the tokenizer that a family's programs do not save with it, of GR00T its backbone's other small
    files, and of Fast-WAM the parts of Wan; return their names, if they were not there."""
    from vla_accel_ros.models.fastwam.checkpoint import SHORT, WAN
    from vla_accel_ros.models.groot.assets import BACKBONE, EAGLE, small_files
    from vla_accel_ros.models.text.tokenizer import PLACES

    if any(
        (folder / file).is_file() for file in (*PLACES, f"{BACKBONE}/config.json", f"{EAGLE}/config.json")
    ):
        return []
    config = folder / "config.json"
    fields = json.loads(config.read_text()) if config.is_file() else {}
    if fields.get("type") == "fastwam":
        parts = _from_hub(WAN, folder / SHORT, ("vae/", "text_encoder/", "tokenizer/"))
        return [f"{SHORT}/{file}" for file in parts]
    model, place, wanted = small_files(fields) or (fields.get("vlm_model_name"), ".", ("tokenizer.json",))
    if not model:
        return _from_storage(TOKENIZER, folder)
    from huggingface_hub import hf_hub_download

    try:
        for file in wanted:
            hf_hub_download(model, file, local_dir=folder / place)
    except Exception as error:
        command = f"hf download {model} {' '.join(wanted)} --local-dir"
        raise _unreachable(model, command, folder / place, error) from error
    return [str(PurePosixPath(place, file)) for file in wanted]


def _unreachable(source: str, command: str, folder: Path, error: Exception) -> RuntimeError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return RuntimeError(
        f"{source} cannot be fetched ({reason}); on a machine with a network:\n  {command} {folder}\n"
        "then copy that folder here"
    )
