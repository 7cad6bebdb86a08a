"""`vla compare FOLDER --peer lerobot|openpi|transformers`: compute the same chunks with public code.

Both get the same observations and the same noise; the public code runs in its own environment (--python).
Prints the largest error of each dimension of an action and a verdict. Status 0 if the actions are the same,
else 1. Both compute in float32 on the CPU, one after the other. Float32 on two sets of kernels differs in the
last bits, far below what a robot can do. A wrong setting (the prompt, the normalisation, relative actions)
differs by a good part of the range of an action.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_accel_ros.tools.options import subcommand, training_option

if TYPE_CHECKING:
    from vla_accel_ros.models.checkpoints.description import Description

PEERS = {"lerobot": "lerobot", "openpi": "openpi", "transformers": "OpenVLA"}
"""The program that wrote the folders that each peer reads."""
INSTALL = {
    "lerobot": "-m pip install 'lerobot[pi,smolvla]'",
    "openpi": "-m pip install -e OPENPI, the folder of openpi's repository",
    "transformers": "-m pip install transformers==4.40.1 tokenizers==0.19.1 timm==0.9.10",
}
OBSERVATIONS, STEPS, HEIGHT, WIDTH, BLOCK = 3, 10, 240, 320, 20
INSTRUCTION = "put the red block into the bowl"
SAME = 1e-3
"""Largest error of actions that are the same, as a share of their range."""
STILL = 1e-3
"""Least range of a dimension, as a share of the largest."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(
        subparsers, "compare", "compare the actions of a checkpoint with those of its original code", run
    )
    add = parser.add_argument
    add("path", type=Path, help="folder of a checkpoint, as its own program saved it")
    add("--peer", choices=tuple(PEERS), required=True, help="the public code")
    add("--python", default=sys.executable, help="Python of the peer's environment (default: this one)")
    add("--statistics", help="which statistics, if there are several: asset id or data set")
    training_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. Returns 1 if the actions differ.

    Raises ValueError, with one sentence, if the folder cannot be loaded, is not of this peer, or if the peer
    cannot run it.
    """
    from vla_accel_ros.models.checkpoints.checkpoint import describe
    from vla_accel_ros.models.pi.training import ask

    description = describe(arguments.path, arguments.statistics, arguments.trained_as)
    if description.missing:
        raise ValueError(description.missing[0])
    if description.unknown:
        raise ask(arguments.path, description.unknown)
    writer = description.format.partition(",")[0]
    if writer != PEERS[arguments.peer]:
        fit = [peer for peer, program in PEERS.items() if program == writer]
        raise ValueError(f"{arguments.path} is of {writer}; give --peer {' or '.join(fit) or 'of its own'}.")
    request, arrays = observations(description)
    request |= {
        "folder": str(arguments.path.resolve()),
        "statistics": arguments.statistics or "".join(description.statistics[:1]),
    }
    with tempfile.TemporaryDirectory(prefix="vla_compare_") as folder:
        peers, answer = ask_peer(arguments.peer, arguments.python, Path(folder), request, arrays)
    ours = compute(arguments, request, arrays)
    comparison = errors(ours, peers, description.actions)
    versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
    print(f"{len(ours)} chunks of {ours.shape[1]} actions, by this package and by {versions}, float32:")
    for note in answer["notes"]:
        print(f"  note: {note}")
    print("  action  largest error  range      share")
    for index, (error, span, share) in enumerate(
        zip(comparison.largest, comparison.range, comparison.shares)
    ):
        print(f"  {index:<7} {error:<14.3g} {span:<10.4g} {share:.2g}")
    worst = int(comparison.shares.argmax())
    share = comparison.shares[worst]
    if comparison.same:
        print(f"the same: no action differs by more than {share:.2g} of its range")
        return 0
    print(
        f"DIFFERENT: action {worst} differs by {comparison.largest[worst]:.3g}, {share:.2g} of its range "
        f"(limit {SAME:g}); do not run it: check its settings, statistics and tokenizer"
    )
    return 1


def observations(description: Description) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what both programs are given: settings for JSON, and arrays by name.

    image_I uint8 [N, H, W, 3] of camera I: blocks of colour. state float32 [N, D] within the range of the
    training. noise float32 [N, H, A], empty for a policy that needs none.
    """
    rng, names = np.random.default_rng(0), description.config.image_names
    low, high = (
        description.state
        if description.state.size
        else np.array([[-1.0], [1.0]]).repeat(description.state_dim, axis=1)
    )
    width = description.config.to_json().get("action_dim", 0)
    shape = (OBSERVATIONS, description.horizon if width else 0, width)
    arrays: dict[str, np.ndarray] = {
        "state": rng.uniform(low, high, (OBSERVATIONS, len(low))).astype(np.float32),
        "noise": rng.standard_normal(shape, dtype=np.float32),
    }
    for index in range(len(names)):
        blocks = rng.integers(0, 256, (OBSERVATIONS, HEIGHT // BLOCK, WIDTH // BLOCK, 3), dtype=np.uint8)
        arrays[f"image_{index}"] = blocks.repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)
    return {
        "kind": description.config.kind,
        "images": list(names),
        "instruction": INSTRUCTION,
        "observations": OBSERVATIONS,
        "steps": STEPS,
        "actions": description.actions.shape[1] or description.action_dim,
        "training": {"delta_action_mask": (), **description.trained_as},
    }, arrays


def ask_peer(
    peer: str, python: str, folder: Path, request: dict[str, Any], arrays: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the peer's chunks float32 [N, H, D], and its versions and notes. Raises ValueError, with one
    sentence, if it cannot be run or fails."""
    (folder / "request.json").write_text(json.dumps(request))
    np.savez(folder / "request.npz", **arrays)  # type: ignore[arg-type]
    command = [python, str(Path(__file__).with_name("peer.py")), peer, str(folder)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ValueError(f"--python {python} cannot be run ({error}); give the peer's Python.") from error
    file = folder / "answer.json"
    answer = json.loads(file.read_text()) if file.is_file() else {"failed": ran.stderr.strip()[-300:]}
    if "missing" in answer:
        raise ValueError(
            f"{python} has no {answer['missing']} for --peer {peer} ({answer['failed'][:200]}); run {python} "
            f"{INSTALL[peer]}, or give --python of an environment that has it."
        )
    if "failed" in answer:
        raise ValueError(
            f"{peer} in {python} cannot run {request['folder']}; run {python} {INSTALL[peer]}, or give "
            f"--python of an environment with another version: {answer['failed'][:300]}"
        )
    with np.load(folder / "answer.npz") as arrays_of_peer:
        return arrays_of_peer["actions"], answer


def compute(
    arguments: argparse.Namespace, request: dict[str, Any], arrays: dict[str, np.ndarray]
) -> np.ndarray:
    """Return this package's chunks, float32 [N, H, D]."""
    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.models.checkpoints.checkpoint import load_policy
    from vla_accel_ros.types import Observation

    policy = load_policy(arguments.path, statistics=arguments.statistics, trained_as=arguments.trained_as)
    engine, chunks = Engine(policy, steps=STEPS), []
    for index in range(OBSERVATIONS):
        images = {name: arrays[f"image_{number}"][index] for number, name in enumerate(request["images"])}
        observation = Observation(images, arrays["state"][index], INSTRUCTION, 0)
        noise = arrays["noise"][index] if arrays["noise"].size else None
        with engine.observe(observation) as prefix:
            chunks.append(engine.act(prefix, noise=noise).actions)
    return np.stack(chunks)


@dataclass(frozen=True)
class Errors:
    """largest: float64 [D], in the policy's units. range: float64 [D], of the actions in training, or else of
    the peer's actions; that of a dimension that hardly moved is STILL of the largest."""

    largest: np.ndarray
    range: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """float64 [D]: the errors as shares of the ranges."""
        return self.largest / self.range

    @property
    def same(self) -> bool:
        """Whether the two programs compute the same actions."""
        return bool((self.shares <= SAME).all())


def errors(ours: np.ndarray, peers: np.ndarray, trained: np.ndarray) -> Errors:
    """Compare chunks float [N, H, D]. trained: lowest and highest action in training, float64 [2, D]; [2, 0]
    without statistics.

    Raises ValueError, with one sentence, if the shapes differ or a number is not finite.
    """
    if ours.shape != peers.shape:
        raise ValueError(
            f"this package computes {_shape(ours)}, the peer {_shape(peers)}; give both the same "
            "settings (vla inspect shows ours)."
        )
    for who, chunks in (("this package", ours), ("the peer", peers)):
        if not np.isfinite(chunks).all():
            raise ValueError(f"{who} computes actions that are not finite; copy the checkpoint again.")
    ours, peers = ours.astype(np.float64), peers.astype(np.float64)
    low, high = trained if trained.shape[1] == ours.shape[2] else (peers.min((0, 1)), peers.max((0, 1)))
    spans = np.abs(high - low)
    narrowest = STILL * spans.max() if spans.max() else 1.0
    return Errors(np.abs(ours - peers).max((0, 1)), np.maximum(spans, narrowest))


def _shape(chunks: np.ndarray) -> str:
    return f"{chunks.shape[0]} chunks of {chunks.shape[1]} actions of {chunks.shape[2]} numbers"
