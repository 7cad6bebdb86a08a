"""A recorded run of lerobot's pi0-FAST: a folder with oracle.json, oracle.npz, fast_tokenizer and checkpoint.

The sizes that no file of a checkpoint has are written into a copy of it, as `vla convert` does.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from oracle import DTYPES, FOLDER, Recording, read_folder_arrays, recorded
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import GemmaConfig, VisionConfig
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.pi_fast.policy import PiFastPolicy
from vla_accel_ros.types import Observation

PATCH = 14
SAMPLES = ("", "sample1_", "sample2_")


def pi_fast_names() -> list[str]:
    """The folder of every recording."""
    return [folder.name for folder in recorded("pi0-FAST")]


def sized_folder(name: str, place: Path) -> Path:
    """A copy of a recording's checkpoint with its sizes; the tokenizer of actions lies beside it."""
    shutil.copytree(FOLDER / name, place)
    sizes = json.loads((place / "oracle.json").read_text())["sizes"]
    config = PiFastConfig(
        VisionConfig(sizes["vh"], sizes["vl"], sizes["vmlp"], sizes["vheads"], sizes["img"], PATCH),
        GemmaConfig(sizes["th"], sizes["tl"], sizes["tmlp"], sizes["heads"], 1, sizes["hd"]),
        sizes["V"],
        sizes["dim"],
        32,
        sizes["chunk"],
        sizes["steps"],
        sizes["maxlen"],
        tuple(sizes["cams"]),
    )
    file = place / "checkpoint" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "vla_accel_ros": config.to_json()}))
    return place / "checkpoint"


@dataclass(frozen=True)
class PiFastOracle(Recording[PiFastPolicy]):
    """See Recording."""

    @classmethod
    def load(cls, name: str, place: Path, dtype: str = "float32", device: str = "cpu") -> PiFastOracle:
        policy = load_policy(sized_folder(name, place), device, DTYPES[dtype])
        assert isinstance(policy, PiFastPolicy)
        spec = json.loads((FOLDER / name / "oracle.json").read_text())
        return cls(name, spec, read_folder_arrays(FOLDER / name), policy)

    @property
    def layers(self) -> int:
        """Of the longest way through the network."""
        return self.policy.config.vision.depth + self.policy.config.prefix.depth

    def observation(self, sample: str) -> Observation:
        cameras, task = self.spec["sizes"]["cams"], self.spec["sizes"]["tasks"][SAMPLES.index(sample)]
        images = {name: self[f"{sample}image_{name}"].numpy() for name in cameras}
        return Observation(images, self[f"{sample}state"].numpy(), task, stamp_ns=0)

    def written(self, sample: str) -> list[int]:
        """The recorded tokens up to the end."""
        tokens: list[int] = self[f"{sample}generated_tokens"][0].tolist()
        return tokens[: tokens.index(self.policy.end_token) + 1]

    def scores(self, sample: str = "") -> Tensor:
        """Of every recorded token [1, n, vocab], in one pass."""
        policy, tokens = self.policy, torch.tensor([self.written(sample)])
        embs = policy.embed(policy.inputs(self.observation(sample)))
        hidden, kv = policy.model.prefix(embs.to(policy.kv_dtype))
        more, _ = policy.model.extend(policy.model.embed_tokens(tokens[:, :-1]).to(policy.kv_dtype), kv)
        return policy.model.logits(torch.cat((hidden[:, -1:], more), dim=1))
