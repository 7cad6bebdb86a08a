"""How long a full-size checkpoint takes to load, and how much host and device memory it needs.

    python bench/load.py [--device cpu|cuda] [--dtype TYPE] [--small] [--folder DIR] [--model NAME]

Writes a pi0.5 and an OpenVLA-7B with random weights in the published layouts (one file of 7.5 GB; three
shards of up to 7 GB and an index; dtypes as published) into a temporary folder, loads each in its own
process, and lets it act once. The file is load_<device>.json: seconds and GB/s; the peak host memory besides
the model, against 1.2 times the largest file; the peak device memory; and whether the actions are finite. The
files come from the page cache, because they were just written. --converted also converts each checkpoint and
loads the result; for pi0.5 it also gives the seconds to fold 10 steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from run import Bench, Given, main, shown
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.checkpoints.safetensors_writer import DTYPES, write_safetensors
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.config import PI05, GemmaConfig, LlamaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OPENVLA_7B, OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.folding import fold_expert
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.weights import EMBED_TOKENS, LM_HEAD, UNUSED

GB = 1e9
SHARD_BYTES = 7_000_000_000
NOISE = 1 << 24
SETTINGS = "discrete_state_input=true use_quantile_norm=true adapt_to_pi=false delta_action_mask=none"
"""What openpi's published config.json does not say."""
JOINTS = 7
Shapes = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def pi_shapes(config: PiConfig) -> Shapes:
    """Tensor shapes as openpi saves them: the tied table under the head's name, and the expert's unused
    head."""
    parameters = dict(empty(Pi, config, torch.bfloat16).named_parameters())
    shapes = {name: (p.dtype, tuple(p.shape)) for name, p in parameters.items()}
    shapes[LM_HEAD] = shapes.pop(EMBED_TOKENS)
    shapes[UNUSED] = (torch.bfloat16, (config.vocab, config.expert.width))
    return shapes


def openvla_shapes(config: OpenVLAConfig) -> Shapes:
    """Tensor shapes as published, including each tower's unused last block and norm."""
    parameters = empty(OpenVLA, config, torch.bfloat16).named_parameters()
    shapes = {name: (p.dtype, tuple(p.shape)) for name, p in parameters}
    for tower, sizes in (("featurizer", config.dino), ("fused_featurizer", config.siglip)):
        root = f"vision_backbone.{tower}."
        first, last = f"{root}blocks.0.", f"{root}blocks.{sizes.depth - 1}."
        shapes |= {last + n[len(first) :]: s for n, s in list(shapes.items()) if n.startswith(first)}
        shapes |= {f"{root}norm.{leaf}": (torch.bfloat16, (sizes.width,)) for leaf in ("weight", "bias")}
    return shapes


def piece(noise: Tensor, begin: int, count: int) -> Tensor:
    """So many numbers of a repeated array, from an offset on."""
    first = noise[begin : begin + count]
    missing = count - len(first)
    return torch.cat((first, noise.repeat(-(-missing // len(noise)))[:missing])) if missing else first


def numbers(shapes: Shapes, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Weights with which a network stays finite: pieces of one random array, because drawing billions takes
    minutes."""
    largest = max(torch.Size(shape).numel() for _, shape in shapes.values())
    noise = torch.randn(min(NOISE, largest), generator=torch.Generator().manual_seed(seed))
    for index, (name, (dtype, shape)) in enumerate(shapes.items()):
        flat = piece(noise, -7919 * index % len(noise), torch.Size(shape).numel()).reshape(shape)
        if len(shape) > 1:
            flat = flat * torch.Size(shape[1:]).numel() ** -0.5
        elif name.endswith("weight") and "gemma" not in name and "language_model.layers" not in name:
            flat = flat * 0.02 + 1.0
        else:
            flat = flat * 0.02
        yield name, flat.to(dtype)


def write_weights(folder: Path, shapes: Shapes, shard_bytes: int | None) -> None:
    """One file, or shards of at most so many bytes and their index."""
    shards: list[Shapes] = [{}]
    size = 0
    for name, (dtype, shape) in shapes.items():
        bytes_ = dtype.itemsize * torch.Size(shape).numel()
        if shard_bytes is not None and size and size + bytes_ > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = (dtype, shape)
        size += bytes_
    where: dict[str, str] = {}
    for number, shard in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        name = "model.safetensors" if shard_bytes is None else name
        layout = {key: (DTYPES[dtype], shape) for key, (dtype, shape) in shard.items()}
        write_safetensors(folder / name, layout, numbers(shard, number))
        where |= dict.fromkeys(shard, name)
    if shard_bytes is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def write_tokenizer(folder: Path) -> None:
    """A tokenizer that knows no word: the values of prompt tokens do not matter here."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "<s>": 2}, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", "</s>", "<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_pi05(folder: Path, small: bool) -> None:
    """openpi's folder; its config.json gives sizes only if they are not a published model's."""
    config = PI05
    if small:
        stack = GemmaConfig(width=256, depth=4, mlp=1024, heads=4, kv_heads=1, head_dim=64)
        vision = VisionConfig(width=144, depth=2, mlp=288, heads=2, image_size=56, patch=14)
        config = replace(
            PI05, vision=vision, prefix=stack, expert=replace(stack, width=128, mlp=512), vocab=9000
        )
    settings = {"vla_accel_ros": config.to_json()} if small else {"action_dim": 32, "action_horizon": 50}
    write_pi(folder, config, settings)


def write_pi(folder: Path, config: PiConfig, said: dict[str, Any], reach: float = 1.0) -> None:
    """openpi's folder without a tokenizer. said: its config.json. reach: of the actions, mostly."""
    write_weights(folder, pi_shapes(config), None)
    (folder / "config.json").write_text(json.dumps(said))
    (folder / "assets" / "robot").mkdir(parents=True)
    stats = {
        group: {"mean": [0.0] * JOINTS, "std": [far] * JOINTS, "q01": [-far] * JOINTS, "q99": [far] * JOINTS}
        for group, far in (("state", 1.0), ("actions", reach))
    }
    (folder / "assets" / "robot" / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))


def write_openvla(folder: Path, small: bool) -> None:
    """The published folder, in shards."""
    config = OPENVLA_7B
    if small:
        llama = LlamaConfig(width=256, depth=4, mlp=512, heads=4, kv_heads=4, head_dim=64)
        tower = VisionConfig(width=96, depth=3, mlp=192, heads=2, image_size=56, patch=14)
        config = replace(OPENVLA_7B, dino=tower, siglip=tower, prefix=llama)
    write_weights(folder, openvla_shapes(config), 20_000_000 if small else SHARD_BYTES)
    action = {"q01": [-1.0] * JOINTS, "q99": [1.0] * JOINTS, "mask": [True] * JOINTS}
    settings: dict[str, Any] = {
        "model_type": "openvla",
        "text_config": {"model_type": "llama"},
        "norm_stats": {"robot": {"action": action}},
    }
    if small:
        settings["vla_accel_ros"] = config.to_json()
    (folder / "config.json").write_text(json.dumps(settings))


WRITERS: dict[str, Callable[[Path, bool], None]] = {"pi05": write_pi05, "openvla": write_openvla}


def load_once(folder: Path, device: str, dtype: str) -> dict[str, Any]:
    """In its own process: load, act once, and print what it took."""
    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.models.checkpoints.checkpoint import load_policy
    from vla_accel_ros.types import Observation

    torch.zeros(1, device=device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    resident_bytes, start = _status("VmRSS"), time.perf_counter()
    policy = load_policy(folder, device, getattr(torch, dtype), trained_as=trained_as(folder))
    seconds = time.perf_counter() - start
    model = sum(parameter.nbytes for parameter in policy.model.parameters())
    beside_bytes = _status("VmHWM") - resident_bytes - (model if device == "cpu" else 0)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    names = policy.config.image_names
    images = {name: np.zeros((224, 224, 3), np.uint8) for name in names}
    engine = Engine(policy, slots=2, answer_tokens=1)
    with engine.observe(Observation(images, np.zeros(JOINTS, np.float32), "lift the red cup", 0)) as prefix:
        actions = engine.act(prefix).actions
    folding = {"fold_s": timed_fold(policy.model)} if isinstance(policy.model, Pi) else {}
    return {
        "seconds": round(seconds, 2),
        "model_gb": round(model / GB, 3),
        "host_beside_gb": round(beside_bytes / GB, 3),
        "device_peak_gb": None if peak is None else round(peak / GB, 3),
        "actions": list(actions.shape),
        "finite": bool(np.isfinite(actions).all()),
        **folding,
    }


def trained_as(folder: Path) -> str:
    """SETTINGS for a folder of openpi's, nothing for any other."""
    fields = json.loads((folder / "config.json").read_text())
    return SETTINGS if "action_horizon" in fields and "vla_accel_ros" not in fields else ""


def timed_fold(model: Pi) -> float:
    """Time of the second of two runs, because the first one loads libraries."""
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        fold_expert(model, 10)
        if model.embed_table.is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return round(seconds, 4)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def options(add: Callable[..., Any]) -> None:
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--folder", type=Path, help="where to write (default: the system's temporary folder)")
    add("--model", choices=tuple(WRITERS), help="only this one")
    add("--converted", action="store_true", help="also convert, and load what that gives")
    add("--load", type=Path, help=argparse.SUPPRESS)


def measure(given: Given) -> Iterator[None]:
    """Write each checkpoint and load it; and what it is converted to, if that is wanted."""
    if given.load is not None:
        given.file = None
        print(json.dumps(load_once(given.load, given.device, given.dtype)))
        return
    if given.file is not None and given.file.name == "load.json":
        given.file = given.file.with_name(f"load_{given.device}.json")
    models = given.document["models"] = {}
    for name in [given.model] if given.model else WRITERS:
        with tempfile.TemporaryDirectory(dir=given.folder) as parent:
            folder = Path(parent) / name
            folder.mkdir()
            WRITERS[name](folder, given.small)
            write_tokenizer(folder)
            models[name] = measure_load(folder, given)
            print(name, shown(models[name]), flush=True)
            yield None
            if given.converted:
                start, out = time.perf_counter(), folder.with_name(f"{name}_converted")
                convert(folder, out, trained_as=trained_as(folder))
                seconds = time.perf_counter() - start
                shutil.rmtree(folder)
                converted = {**measure_load(out, given), "converting_s": round(seconds, 2)}
                models[f"{name} converted"] = converted
                print(name, "converted", shown(converted), flush=True)
                yield None


def measure_load(folder: Path, given: Given) -> dict[str, Any]:
    """Of one folder."""
    files = [path.stat().st_size for path in folder.glob("*.safetensors")]
    command = [sys.executable, __file__, "--load", str(folder)]
    command += ["--device", given.device, "--dtype", given.dtype]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"loading {folder.name} failed:\n{ran.stderr}")
    measured = json.loads(ran.stdout.splitlines()[-1])
    stored = sum(files) / GB
    return {
        "files": len(files),
        "stored_gb": round(stored, 3),
        "largest_file_gb": round(max(files) / GB, 3),
        **measured,
        "gb_per_s": round(stored / measured["seconds"], 2),
        "within_bound": measured["host_beside_gb"] <= 1.2 * max(files) / GB,
    }


BENCH = Bench("load", measure, options, rows="models", small=True, smoke="--small --model pi05 --converted")

if __name__ == "__main__":
    sys.exit(main(BENCH))
