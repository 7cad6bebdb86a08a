"""`vla fetch` from stand-ins of the hub's and the storage's HTTP interfaces, by the hub's public client."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import make_checkpoint
from groot_builders import make_groot_folder
from lerobot_builders import make_lerobot_config, make_lerobot_folder

from vla_accel_ros.contract.checks.model_check import read_model

SHA = "0123456789abcdef0123456789abcdef01234567"


class Stand(http.server.ThreadingHTTPServer):
    """Serves repositories (OWNER/NAME -> folder) as the hub does, and buckets (name -> folder) as storage.

    requests: the paths asked for. gated: repositories. damaged: objects with a wrong byte.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Path] = {}
        self.buckets: dict[str, Path] = {}
        self.requests: list[str] = []
        self.gated: set[str] = set()
        self.damaged: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Stand

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urllib.parse.urlparse(self.path)
        self.server.requests.append(url.path)
        if url.path.startswith("/storage/v1/b/"):
            self._storage(url)
            return
        owner, name, *rest = url.path.removeprefix("/api/models").strip("/").split("/")
        folder = self.server.repositories.get(f"{owner}/{name}")
        if f"{owner}/{name}" in self.server.gated:
            self._answer(b"", 403, {"X-Error-Code": "GatedRepo"})
        elif folder is None:
            self._answer(b"", 404, {"X-Error-Code": "RepoNotFound"})
        elif url.path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in files(folder)]
            self._answer(json.dumps({"id": f"{owner}/{name}", "sha": SHA, "siblings": siblings}).encode())
        else:
            data = (folder / "/".join(rest[2:])).read_bytes()
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            self._answer(data, 200, {"ETag": etag, "X-Repo-Commit": SHA})

    def _storage(self, url: urllib.parse.ParseResult) -> None:
        bucket, _, *names = url.path.removeprefix("/storage/v1/b/").split("/")
        folder, query = self.server.buckets[bucket], urllib.parse.parse_qs(url.query)
        if names:
            name = urllib.parse.unquote(names[0])
            data = (folder / name).read_bytes()
            self._answer(data[:-1] + b"?" if name in self.server.damaged else data)
            return
        listed = [name for name in files(folder) if name.startswith(query["prefix"][0])]
        first = int(query.get("pageToken", ["0"])[0])
        page: dict[str, object] = {"items": [described(folder, name) for name in listed[first : first + 2]]}
        if first + 2 < len(listed):
            page["nextPageToken"] = str(first + 2)
        self._answer(json.dumps(page).encode())

    def _answer(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def described(folder: Path, name: str) -> dict[str, str]:
    data = (folder / name).read_bytes()
    digest = base64.b64encode(hashlib.md5(data).digest()).decode()
    return {"name": name, "size": str(len(data)), "md5Hash": digest}


@pytest.fixture
def stand() -> Iterator[Stand]:
    with Stand() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def vla(stand: Stand | str, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = stand if isinstance(stand, str) else stand.url
    environment = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HOME": str(cache / "hf"),
        "STORAGE_EMULATOR_HOST": url,
        "XDG_CACHE_HOME": str(cache),
    }
    command = [sys.executable, "-m", "vla_accel_ros.tools.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_fetch_from_the_hub_takes_weights_and_json_and_the_tokenizer_and_needs_no_network_again(
    stand, tmp_path
):
    published = make_lerobot_folder(tmp_path / "published", make_lerobot_config("pi0"), relative=False)
    tokenizer = stand.buckets["big_vision"] = tmp_path / "big_vision"
    tokenizer.mkdir()
    (published / "tokenizer.json").replace(tokenizer / "paligemma_tokenizer.model")
    (published / "modeling.py").write_text("raise SystemExit")
    (published / "optimizer.pt").write_bytes(b"\x80")
    stand.repositories["acme/pi"] = published
    done = vla(stand, tmp_path, "fetch", "acme/pi@v1")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "vla_accel_ros" / "acme" / "pi@v1"
    assert f"vla inspect {folder}" in done.stdout.splitlines()[-1]
    taken = {name for name in files(folder) if not name.startswith(".")}
    assert taken == set(files(published)) - {"modeling.py", "optimizer.pt"} | {"paligemma_tokenizer.model"}
    assert all(
        (folder / name).read_bytes() == (published / name).read_bytes()
        for name in taken & set(files(published))
    )
    stand.requests.clear()
    again = vla("http://127.0.0.1:9", tmp_path, "fetch", "acme/pi@v1")
    assert again.returncode == 0 and not stand.requests


def test_fetched_fast_wam_has_the_parts_of_wan_and_no_more(stand, tmp_path):
    recorded = Path(__file__).parents[1] / "data" / "oracles" / "fastwam"
    wan = tmp_path / "wan"
    shutil.copytree(recorded / "wan_diffusers", wan)
    (wan / "transformer").mkdir()
    (wan / "transformer" / "large.safetensors").write_bytes(b"0")
    stand.repositories |= {"acme/wam": recorded / "checkpoint", "Wan-AI/Wan2.2-TI2V-5B-Diffusers": wan}
    folder = tmp_path / "wam"
    done = vla(stand, tmp_path, "fetch", "acme/wam", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    fetched = [name for name in files(folder / "wan_diffusers") if not name.startswith(".")]
    assert fetched == files(recorded / "wan_diffusers")
    assert not read_model(folder).missing


def test_fetched_checkpoint_is_inspected_and_the_end_says_what_is_next(stand, tmp_path):
    stand.repositories["acme/own"] = make_checkpoint(tmp_path / "published")
    folder = tmp_path / "own"
    assert vla(stand, tmp_path, "fetch", "acme/own", "--output", str(folder)).returncode == 0
    inspected = vla(stand, tmp_path, "inspect", str(folder))
    assert inspected.returncode == 0, inspected.stderr
    assert inspected.stdout.splitlines()[-1] == f"next: vla contract make --model {folder} > robot.yaml"
    (folder / "tokenizer.json").unlink()
    inspected = vla(stand, tmp_path, "inspect", str(folder))
    assert inspected.returncode == 1 and "next: fix" in inspected.stdout.splitlines()[-1]


def test_fetch_by_openpis_name_takes_its_folder_of_the_storage_and_knows_its_training(stand, tmp_path):
    checkpoint = (stand.buckets.setdefault("openpi-assets", tmp_path / "bucket")) / "checkpoints"
    contents = {"pi05_libero/params/_METADATA": b"{}", "pi05_libero/params/a": b"a" * 70_000}
    contents |= {"pi05_libero/assets/libero/norm_stats.json": b"{}", "pi05_libero_more/x": b"not this one"}
    for name, data in contents.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(data)
    (checkpoint / "pi05_libero" / "tokenizer.model").write_bytes(b"t")
    done = vla(stand, tmp_path, "fetch", "pi05_libero", "--output", str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"next: vla inspect {tmp_path / 'model'} --as pi05_libero"
    assert files(tmp_path / "model") == sorted([".fetched.json", *files(checkpoint / "pi05_libero")])
    assert (tmp_path / "model" / "params" / "a").read_bytes() == b"a" * 70_000
    stand.damaged.add("checkpoints/pi05_libero/params/a")
    damaged = vla(stand, tmp_path, "fetch", "pi05_libero", "--output", str(tmp_path / "other"))
    assert damaged.returncode == 1 and "params/a arrived damaged" in damaged.stderr
    assert not (tmp_path / "other" / "params" / "a").exists()


@pytest.mark.parametrize(
    "name, command",
    [("acme/pi", "hf download acme/pi"), ("gs://bucket/pi", "gcloud storage rsync -r gs://bucket/pi")],
)
def test_fetch_without_a_network_prints_the_commands(tmp_path, name, command):
    failed = vla("http://127.0.0.1:9", tmp_path, "fetch", name, "--output", str(tmp_path / "model"))
    assert failed.returncode == 1 and command in failed.stderr and str(tmp_path / "model") in failed.stderr


def test_fetch_of_what_is_gated_unknown_without_safetensors_or_no_name_says_so(stand, tmp_path):
    stand.gated.add("acme/gated")
    stand.repositories["acme/pickled"] = tmp_path / "pickled"
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"\x80")
    for name, word in {
        "acme/gated": "huggingface.co/acme/gated",
        "acme/unknown": "acme/unknown",
        "acme/pickled": "safetensors",
        "acme/../etc": "OWNER/NAME",
        "pi05": "OWNER/NAME",
    }.items():
        refused = vla(stand, tmp_path, "fetch", name)
        assert refused.returncode == 2 and word in refused.stderr, (name, refused.stderr)


@pytest.mark.parametrize(
    ("kind", "layout", "repository", "place"),
    [
        ("groot_n1_7", "nvidia", "nvidia/Cosmos-Reason2-2B", "backbone"),
        ("groot_n1_5", "lerobot", "lerobot/eagle2hg-processor-groot-n1p5", "eagle_assets"),
    ],
)
def test_fetched_groot_has_the_small_files_of_its_backbone(stand, tmp_path, kind, layout, repository, place):
    published = make_groot_folder(tmp_path / "published", kind, layout)
    if place == "backbone":
        config = json.loads((published / "config.json").read_text())
        (published / "config.json").write_text(json.dumps({**config, "model_name": repository}))
    stand.repositories[repository] = tmp_path / "small"
    (published / place).rename(tmp_path / "small")
    stand.repositories["somebody/groot"] = published
    done = vla(stand, tmp_path / "cache", "fetch", "somebody/groot", "--output", str(tmp_path / "here"))
    assert done.returncode == 0, done.stderr
    assert not read_model(tmp_path / "here").missing
