"""Merge a LoRA adapter, as peft saves it, into the weights of its base model while they are read.

A weight W becomes W + s B A (Hu et al., arXiv 2106.09685), with s = alpha / r, or alpha / sqrt(r) for
rank-stabilised adapters. It is computed in float32 and rounded once, to the dtype that W is stored in.
Adapters that began from other weights than the base's, or that compute anything else, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_accel_ros.models.checkpoints.fields import check_fields, words
from vla_accel_ros.models.checkpoints.shards import ADAPTERS, COMPILED, LowRank, Part, Stored, read_headers
from vla_accel_ros.models.json_file import read_json

CONFIG, WEIGHTS, PICKLED = ADAPTERS
BEFORE = "base_model.model."
"""Stands before the name of every module."""
FACTORS = {"lora_A": False, "lora_B": True, "lora_embedding_A": False, "lora_embedding_B": True}
"""Part of a name -> whether it is B."""
FIELDS = words("""
    r lora_alpha use_rslora rank_pattern alpha_pattern target_modules exclude_modules modules_to_save bias
    lora_dropout layers_to_transform layers_pattern base_model_name_or_path revision auto_mapping task_type
    inference_mode megatron_core loftq_config eva_config corda_config lora_ga_config qalora_group_size
    peft_version ensure_weight_tying init_lora_weights
""")
FIXED: Mapping[str, Any] = {
    "peft_type": "LORA",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_qalora": False,
    "use_bdlora": None,
    "lora_bias": False,
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "velora_config": None,
    "monteclora_config": None,
    "kasa_config": None,
    "megatron_config": None,
}
STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base's weights as they are."""


@dataclass(frozen=True)
class Adapter:
    """What a folder of peft holds. config: adapter_config.json. tensors: by their names there."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Stored]

    @classmethod
    def of(cls, folder: Path) -> Adapter:
        """Read the headers of a folder. Raises ValueError if it is none of peft's, or is not to be merged."""
        file = folder / CONFIG
        if not file.is_file():
            raise ValueError(f"{file} is not there; give the folder in which peft saved an adapter.")
        config = read_json(file)
        check_fields(config, f"{file}: ", FIELDS, FIXED)
        start = config.get("init_lora_weights", True)
        if start not in STARTS:
            raise ValueError(
                f"{file}: init_lora_weights is {start!r}, which changed the base's weights before training; "
                "let peft convert it when it saves it (path_initial_model_for_weight_conversion)."
            )
        if not (folder / WEIGHTS).is_file():
            raise ValueError(
                f"{folder / WEIGHTS} is not there; save the adapter as safetensors ({PICKLED} may hold "
                "pickled code and is never opened)."
            )
        return cls(folder, config, read_headers(folder / WEIGHTS))

    def merged(self, base: Mapping[str, Stored], where: str) -> dict[str, Stored]:
        """Return the tensors of `base`, by their names there, with this adapter's. where: names the base.

        Raises ValueError if a tensor of the adapter has no place in the base, or another shape.
        """
        table, factors = dict(base), dict[str, dict[bool, str]]()
        for name in self.tensors:
            module, factor = self._factor(name)
            if factor is not None:
                factors.setdefault(module, {})[factor] = name
                continue
            target = self._target(name, module, table, where)
            stored = self.tensors[name]
            if stored.shape != base[target].shape:
                self._refuse_shape(name, target, base[target], where)
            table[target] = replace(stored, part=stored.part or Part(name, 0))
        for module, pair in factors.items():
            if set(pair) != {False, True}:
                raise ValueError(
                    f"{self.folder / WEIGHTS} has {next(iter(pair.values()))} without its other factor; copy "
                    "it again."
                )
            target = self._target(pair[False], f"{module}.weight", table, where)
            table[target] = replace(table[target], added=self._low_rank(module, pair, target, base, where))
        if not self.tensors:
            raise ValueError(f"{self.folder / WEIGHTS} has no tensors; copy it again.")
        return table

    def _factor(self, name: str) -> tuple[str, bool | None]:
        """Return a tensor's module and whether it is the factor B, or its own name in the base and None."""
        plain_name = name.replace(COMPILED, "").removeprefix(BEFORE)
        parts = [
            part for part in plain_name.split(".") if part not in ("default", "modules_to_save", "base_layer")
        ]
        for part, is_b in FACTORS.items():
            if part in parts and parts[-1] in (part, "weight"):
                return ".".join(parts[: parts.index(part)]), is_b
        return ".".join(parts), None

    def _target(self, name: str, own: str, table: Mapping[str, Stored], where: str) -> str:
        """Return the base's name of the tensor `own`: lerobot's `model.` may be left out of either."""
        for target in (own, own.removeprefix("model."), f"model.{own}"):
            if target in table:
                return target
        raise ValueError(
            f"{self.folder / WEIGHTS}: {name} changes {own}, which {where} does not have; give the base that "
            f"it was trained from ({self.config.get('base_model_name_or_path')!r})."
        )

    def _low_rank(
        self, module: str, pair: Mapping[bool, str], target: str, base: Mapping[str, Stored], where: str
    ) -> LowRank:
        a, b = (self.tensors[pair[is_b]] for is_b in (False, True))
        rank, alpha = (
            _by_pattern(self.config.get(pattern) or {}, module, self.config.get(name))
            for pattern, name in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
        )
        file = self.folder / CONFIG
        for name, value in (("r", rank), ("lora_alpha", alpha)):
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{file}: {name} of {module} is {value!r}; it must be above 0.")
        embedding = "lora_embedding_A" in pair[False]
        shape = (a.shape[1:] + b.shape[:1]) if embedding else (b.shape[:1] + a.shape[1:])
        if a.shape[:1] != (rank,) or b.shape[1:2] != (rank,) or shape != base[target].shape:
            self._refuse_shape(pair[True], target, base[target], where)
        scale = alpha / rank**0.5 if self.config.get("use_rslora") else alpha / rank
        return LowRank(self.folder / WEIGHTS, pair[False], pair[True], scale, embedding)

    def _refuse_shape(self, name: str, target: str, stored: Stored, where: str) -> None:
        raise ValueError(
            f"{self.folder / WEIGHTS}: {name} of shape {list(self.tensors[name].shape)} does not fit "
            f"{target} of shape {list(stored.shape)} in {where}, or r in {CONFIG}; give the base that it was "
            "trained from."
        )


def _by_pattern(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Return the value of the first pattern that matches the end of a module's name, as peft does."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
