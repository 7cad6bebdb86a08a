"""Read lerobot's processors, saved beside a policy: the steps before and after it, and their statistics.

`policy_preprocessor.json` and `policy_postprocessor.json` list steps by name, and each step with tensors
names its own file, so nothing depends on the position of a step. An unknown step, or an unknown field of one,
is refused: leaving it out silently would change the policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.fields import check_fields, part
from vla_accel_ros.models.checkpoints.shards import open_weights
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.processing.norm_stats import check_ordered, finite_numbers

BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
NORMALIZER, UNNORMALIZER = "normalizer_processor", "unnormalizer_processor"
RELATIVE, ABSOLUTE = "relative_actions_processor", "absolute_actions_processor"
IN_0_5_1 = {"delta_actions_processor": RELATIVE}
"""The name that lerobot 0.5.1 registers the step under; 0.6.0 renamed it."""
RENAME, TOKENIZER = "rename_observations_processor", "tokenizer_processor"
ACTION_TOKENIZER = "action_tokenizer_processor"
"""A step of training alone."""
TRANSPORT: Mapping[str, frozenset[str]] = {
    RENAME: frozenset({"rename_map"}),
    "to_batch_processor": frozenset(),
    "device_processor": frozenset({"device"}),
    TOKENIZER: frozenset({"tokenizer_name", "max_length", "padding", "truncation"}),
}
"""Steps that change no number, with their harmless fields; the tokenizer's file is in the folder."""
PROMPT_STEPS: Mapping[str, tuple[str, ...]] = {
    "pi0": ("pi0_new_line_processor", "smolvla_new_line_processor"),
    "pi05": ("pi05_prepare_state_tokenizer_processor_step",),
    "pi0_fast": ("pi0_fast_prepare_state_tokenizer_processor_step",),
    "smolvla": ("smolvla_new_line_processor",),
}
"""The step that writes the prompt, by the kind of policy; pi0's has had two names."""
NORMALIZER_FIELDS = frozenset({"eps", "features", "norm_map", "normalize_observation_keys"})
FIELDS: Mapping[str, frozenset[str]] = {
    **TRANSPORT,
    **{name: frozenset() for names in PROMPT_STEPS.values() for name in names},
    NORMALIZER: NORMALIZER_FIELDS,
    UNNORMALIZER: NORMALIZER_FIELDS,
    RELATIVE: frozenset({"enabled", "exclude_joints", "action_names"}),
    ABSOLUTE: frozenset({"enabled"}),
    ACTION_TOKENIZER: frozenset(
        {
            "action_tokenizer_name",
            "paligemma_tokenizer_name",
            "max_action_tokens",
            "trust_remote_code",
            "allow_truncation",
        }
    ),
}
FIXED: Mapping[str, Mapping[str, Any]] = {
    "device_processor": {"float_dtype": None},
    TOKENIZER: {"task_key": "task", "padding_side": "right"},
    ACTION_TOKENIZER: {"fast_skip_tokens": 128},
}
"""Fields of a step that change actions, with the value that is implemented."""
ENTRY_FIELDS = frozenset({"registry_name", "config", "state_file", "artifacts"})
DATASET_STATISTICS = Path("meta", "stats.json")
"""Path in a data set's folder."""
IMAGES = "observation.images."
IMAGENET_MEAN = (0.485, 0.456, 0.406)
STATISTICS_BEFORE_0_4 = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")
EPS = 1e-8
STATISTICS = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}


@dataclass(frozen=True)
class Step:
    """A step's registered name, its settings, and the file of its tensors if any."""

    name: str
    config: dict[str, Any]
    state_file: Path | None


def read_lerobot_normalizers(
    folder: Path, known: Collection[str] = (), dataset: str | None = None
) -> tuple[Normalizer, Normalizer]:
    """Return (state, actions) of a folder that lerobot saved.

    known: names of further steps that the caller implements. dataset: a data set folder in lerobot's layout
    whose statistics replace the saved ones, in the same modes.
    Raises ValueError if a file, a step or a number is missing, malformed or unknown.
    """
    input_steps, output_steps = read_steps(folder / BEFORE), read_steps(folder / AFTER)
    for file, steps in ((BEFORE, input_steps), (AFTER, output_steps)):
        unknown = [
            step.name for step in steps if step.name not in {*known, *TRANSPORT, NORMALIZER, UNNORMALIZER}
        ]
        if unknown:
            raise ValueError(
                f"{folder / file} has the steps {unknown}, which are not known here; only policies without "
                "them can be run."
            )
    other = None if dataset is None else _read_dataset(dataset)
    return (
        _normalizer(folder / BEFORE, input_steps, NORMALIZER, "STATE", "observation.state", other),
        _normalizer(folder / AFTER, output_steps, UNNORMALIZER, "ACTION", "action", other),
    )


def read_prompted_normalizers(
    folder: Path, config: Any, steps: Collection[str] = (), dataset: str | None = None
) -> tuple[Normalizer, Normalizer]:
    """As read_lerobot_normalizers, for sizes of a kind in PROMPT_STEPS and further steps. Raises ValueError,
    too, if no step of the kind writes the prompt, or if it was cut."""
    check_prompt_steps(folder, config.kind, config.max_prompt)
    return read_lerobot_normalizers(folder, (*PROMPT_STEPS[config.kind], *steps), dataset)


def read_lerobot_moments(folder: Path, dataset: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of (states, actions), float64 [2, D] each, whichever statistics
    normalise. dataset: as in read_lerobot_normalizers. Raises ValueError if they are not there."""
    steps = [step for step in read_steps(folder / BEFORE) if step.name == NORMALIZER]
    other = None if dataset is None else _read_dataset(dataset)
    moments = []
    for key in ("observation.state", "action"):
        numbers = (
            saved_numbers(folder / BEFORE, steps[0], f"{key}.{which}")
            if other is None
            else other.numbers(key, which)
            for which in ("mean", "std")
        )
        moments.append(np.stack(list(numbers)))
    return moments[0], moments[1]


def check_prompt_steps(folder: Path, kind: str, max_prompt: int) -> None:
    """Raise ValueError unless there is a step that writes the prompt of this kind of policy, and no prompt of
    up to max_prompt tokens is cut."""
    names, steps = PROMPT_STEPS[kind], read_steps(folder / BEFORE)
    for step in steps:
        cut = step.config.get("max_length", max_prompt)
        if step.name == TOKENIZER and (not isinstance(cut, int) or cut < max_prompt):
            raise ValueError(
                f"{folder / BEFORE}, {TOKENIZER}.max_length is {cut!r}: longer prompts were cut in training; "
                f"write it into config.json as tokenizer_max_length, which is {max_prompt}."
            )
    if not any(step.name in names for step in steps):
        raise ValueError(
            f"{folder / BEFORE} has no step {' or '.join(names)}, so its prompt is not the one written here; "
            "copy the processors of this policy's own training."
        )


def read_relative(folder: Path, width: int, config: Mapping[str, Any]) -> np.ndarray | None:
    """Return bool [D], which actions are relative to the state; None if no processor says.

    width: D. config: of the policy, which says it, too. lerobot saves both since 0.5.1, but a policy that was
    trained from an older one without relative actions keeps that one's processors. A joint is excluded by
    part of its name.
    Raises ValueError if the files disagree or a field is malformed.
    """
    relative_steps = [step for step in read_steps(folder / BEFORE) if step.name == RELATIVE]
    absolute_steps = [step for step in read_steps(folder / AFTER) if step.name == ABSOLUTE]
    declared = config.get("use_relative_actions")
    if not relative_steps and not absolute_steps:
        if declared not in (None, False):
            raise ValueError(
                f"{folder / 'config.json'}: use_relative_actions is {declared!r}, but {BEFORE} and {AFTER} "
                f"have no steps {RELATIVE} and {ABSOLUTE}; copy all three files of one training."
            )
        return None
    enabled = [step.config.get("enabled", False) for step in (*relative_steps, *absolute_steps)]
    if len(relative_steps) != 1 or len(absolute_steps) != 1 or enabled[0] is not enabled[1]:
        raise ValueError(
            f"{folder / BEFORE} and {folder / AFTER} must have one step {RELATIVE} and one {ABSOLUTE}, both "
            "enabled or none; copy them again."
        )
    if declared is not None and declared is not enabled[0]:
        raise ValueError(
            f"{folder / 'config.json'}: use_relative_actions is {declared!r}, but {RELATIVE} of {BEFORE} has "
            f"enabled {enabled[0]!r}; copy both files of one training."
        )
    if not enabled[0]:
        return np.zeros(width, np.bool_)
    step = relative_steps[0].config
    relative = _relative(f"{folder / BEFORE}, {RELATIVE}", step, "action_names", "exclude_joints", width)
    file, fields = folder / "config.json", ("action_feature_names", "relative_exclude_joints")
    if all(config.get(field) is not None for field in fields) and not np.array_equal(
        relative, _relative(str(file), config, *fields, width)
    ):
        raise ValueError(
            f"{file}: {fields[1]} is {config[fields[1]]!r}, but {RELATIVE} of {BEFORE} excludes "
            f"{step.get('exclude_joints')!r} of {step.get('action_names')!r}; copy both of one training."
        )
    return relative


def _relative(where: str, fields: Mapping[str, Any], names: str, excluded: str, width: int) -> np.ndarray:
    """Return bool [D] from two lists of names, the fields `names` and `excluded`."""
    lists = [fields.get(field) or [] for field in (names, excluded)]
    if not all(isinstance(some, list) and all(isinstance(n, str) for n in some) for some in lists):
        raise ValueError(f"{where}: {names} and {excluded} must be lists of names.")
    tokens = [name.lower() for name in lists[1] if name]
    relative = np.ones(width, np.bool_)
    for index, name in enumerate(lists[0][:width]):
        relative[index] = not any(token in name.lower() for token in tokens)
    return relative


def read_names(folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the names in the training data: of images by the policy's names, where those differ, and of
    joints, () if the folder has none. Raises ValueError if a field is malformed."""
    file = folder / BEFORE
    images, joints = dict[str, str](), tuple[str, ...]()
    for step in read_steps(file):
        renamed = step.config.get("rename_map") or {}
        if step.name == RENAME:
            if not isinstance(renamed, dict) or not all(isinstance(name, str) for name in renamed.values()):
                raise ValueError(f"{file}, {RENAME}: rename_map must map names to names.")
            images |= {_image(policys): _image(trained) for trained, policys in renamed.items()}
        names = step.config.get("action_names") or []
        if step.name == RELATIVE and isinstance(names, list):
            joints = tuple(map(str, names))
    return images, joints


def _image(key: str) -> str:
    return key.removeprefix("observation.").removeprefix("images.")


def read_image_statistics(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return mean and standard deviation of each camera's pixels in training, float64 [3] of 0..1, by the
    name of the image; empty for a folder that does not have them. lerobot saves them unused. By default it
    puts ImageNet's in place of the data set's (use_imagenet_stats), which say nothing and are left out."""
    steps = read_steps(folder / BEFORE) if (folder / BEFORE).is_file() else []
    file = next((step.state_file for step in steps if step.name == NORMALIZER and step.state_file), None)
    if file is None or not file.is_file():
        return {}
    statistics: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with open_weights(file) as tensors:
        keys = set(tensors.keys())
        for name in (key.removesuffix(".mean") for key in keys if key.startswith(IMAGES)):
            if {f"{name}.mean", f"{name}.std"} <= keys:
                mean, std = (
                    tensors.get_tensor(f"{name}.{name_of_statistic}").double().flatten()
                    for name_of_statistic in ("mean", "std")
                )
                is_own = len(mean) == len(std) == 3 and not np.allclose(mean, IMAGENET_MEAN, atol=1e-4)
                if is_own and bool(mean.isfinite().all() and std.isfinite().all()):
                    statistics[name.removeprefix(IMAGES)] = (mean.numpy(), std.numpy())
    return statistics


def normalisation_modes(folder: Path) -> str:
    """Return how state and actions are normalised, in words."""
    modes = []
    for file, name, kind in ((BEFORE, NORMALIZER, "STATE"), (AFTER, UNNORMALIZER, "ACTION")):
        steps = [step for step in read_steps(folder / file) if step.name == name]
        norm_map = steps[0].config.get("norm_map") if steps else None
        modes.append(str(norm_map.get(kind, "IDENTITY")) if isinstance(norm_map, dict) else "IDENTITY")
    return f"state {modes[0]}, actions {modes[1]} (lerobot's names), epsilon {EPS:g}"


def check_since_0_4(folder: Path, tensors: Iterable[str], kind: str) -> None:
    """Raise ValueError if the weights hold statistics, as lerobot saved them before 0.4."""
    old = next((name for name in tensors if name.startswith(STATISTICS_BEFORE_0_4)), None)
    if old is not None:
        mend = f"run {_migrate(folder)}, and give {folder}_migrated"
        if kind != "smolvla":
            mend = f"the {kind} of 0.4 is another one, so train it again with a newer lerobot"
        raise ValueError(f"{folder} was saved by lerobot before 0.4 ({old} is among the weights); {mend}.")


def _migrate(folder: Path) -> str:
    return f"python -m lerobot.processor.migrate_policy_normalization --pretrained-path {folder}"


def read_steps(file: Path) -> list[Step]:
    """Return the steps of a processor. Raises ValueError if the file or a known step is malformed."""
    if not file.is_file():
        raise ValueError(
            f"{file} is not there; copy it, or for a policy saved by lerobot before 0.4 run "
            f"{_migrate(file.parent)}."
        )
    data = read_json(file)
    check_fields(data, f"{file}: ", ("name", "steps"), {})
    listed = data.get("steps")
    if not isinstance(listed, list):
        raise ValueError(f"{file}, field steps: it must be a list; copy the file again.")
    return [_step(file, index, step) for index, step in enumerate(listed)]


def _step(file: Path, index: int, data: Any) -> Step:
    data = data if isinstance(data, dict) else {}
    where = f"{file}, field steps[{index}]: "
    name, config, state = data.get("registry_name"), data.get("config", {}), data.get("state_file")
    if not isinstance(name, str) or not isinstance(config, dict):
        raise ValueError(
            f"{where}it has no registry_name and config; only lerobot's registered steps are known, and no "
            "code is run."
        )
    check_fields(data, where, ENTRY_FIELDS, {})
    name = IN_0_5_1.get(name, name)
    if name in FIELDS:
        check_fields(config, f"{where}{name}.", FIELDS[name], FIXED.get(name, {}))
    if state is None:
        return Step(name, config, None)
    if not isinstance(state, str) or Path(state).name != state or not state.endswith(".safetensors"):
        raise ValueError(
            f"{file}, field steps[{index}].state_file is {state!r}; it must name a .safetensors beside it."
        )
    return Step(name, config, file.parent / state)


@dataclass(frozen=True)
class _Dataset:
    """Statistics of a data set: key -> name -> numbers."""

    file: Path
    data: dict[str, Any]

    def numbers(self, key: str, which: str) -> np.ndarray:
        return finite_numbers(part(self.data.get(key), which), f"{self.file}: {key}.{which}")


def _read_dataset(dataset: str) -> _Dataset:
    file = Path(dataset) / DATASET_STATISTICS
    if not file.is_file():
        raise ValueError(
            f"statistics is '{dataset}', but {file} is not there; a policy that lerobot saved has one set, "
            "so give nothing, or the folder of a data set in lerobot's layout."
        )
    return _Dataset(file, read_json(file))


def _normalizer(
    file: Path, steps: list[Step], name: str, kind: str, key: str, other: _Dataset | None
) -> Normalizer:
    matches = [step for step in steps if step.name == name]
    if len(matches) != 1:
        raise ValueError(f"{file} has {len(matches)} steps {name}; it must have one.")
    modes = matches[0].config.get("norm_map")
    modes = modes if isinstance(modes, dict) else {}
    if modes.get("VISUAL", "IDENTITY") != "IDENTITY":
        raise ValueError(f"{file}, {name}.norm_map.VISUAL is {modes['VISUAL']!r}; only 'IDENTITY' is known.")
    mode, keys = modes.get(kind, "IDENTITY"), matches[0].config.get("normalize_observation_keys")
    if kind == "STATE" and keys is not None and not (isinstance(keys, list) and key in keys):
        raise ValueError(
            f"{file}, {name}.normalize_observation_keys is {keys!r}, without {key}; only policies that "
            "normalise every observation are known."
        )
    if mode == "IDENTITY":
        return Normalizer.identity()
    features = matches[0].config.get("features")
    if kind == "STATE" and isinstance(features, dict):
        entry = features.get(key)
        if not isinstance(entry, dict) or entry.get("type") != kind:
            raise ValueError(
                f"{file}, {name}.features has {key} as {entry!r}, so lerobot does not normalise the state; "
                "write norm_map.STATE IDENTITY if it was trained so, else copy the file of its training."
            )
    if not isinstance(mode, str) or mode not in STATISTICS:
        raise ValueError(
            f"{file}, {name}.norm_map.{kind} is {mode!r}; use one of {['IDENTITY', *STATISTICS]}."
        )
    if other is None:
        first, second = (saved_numbers(file, matches[0], f"{key}.{which}") for which in STATISTICS[mode])
    else:
        first, second = (other.numbers(key, which) for which in STATISTICS[mode])
    where = matches[0].state_file if other is None else other.file
    check_ordered(first, second, STATISTICS[mode], f"{where}: {key}")
    normalizer = make_normalizer(mode, first, second, _epsilon(file, matches[0]))
    if not np.isfinite([normalizer.shift, normalizer.scale]).all():
        raise ValueError(f"{where}: {key} exceeds float32; compute the statistics again.")
    return normalizer


def make_normalizer(mode: str, first: np.ndarray, second: np.ndarray, eps: float = EPS) -> Normalizer:
    """Return lerobot's map from the two statistics float [D] of a mode, in float32 as there.

    lerobot adds eps to std only when it normalises: its inverse differs from this one by eps times the
    number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        first, second = np.asarray(first, np.float32), np.asarray(second, np.float32)
        span = second - first
    if mode == "MEAN_STD":
        return Normalizer(first, second + np.float32(eps))
    return Normalizer(first, np.where(span == 0, np.float32(eps), span), gain=2.0, offset=-1.0)


def _epsilon(file: Path, step: Step) -> float:
    eps = step.config.get("eps", EPS)
    if not isinstance(eps, float | int) or isinstance(eps, bool) or not 0 < np.float32(eps) < 1:
        raise ValueError(f"{file}, {step.name}.eps is {eps!r}; it must be between 0 and 1 in float32.")
    return float(eps)


def saved_numbers(file: Path, step: Step, name: str) -> np.ndarray:
    """Return a statistic float64 [D] that a step of this file has. Raises ValueError if it is not there, or
    no list of finite numbers."""
    if step.state_file is None or not step.state_file.is_file():
        raise ValueError(
            f"{file} names {step.state_file} for the statistics of {step.name}, which is not there; copy it."
        )
    with open_weights(step.state_file) as tensors:
        names = set(tensors.keys())
        if name not in names:
            sets = sorted({other.partition(".buffer.")[0] for other in names if ".buffer." in other})
            mend = "train or convert the policy with statistics"
            if sets:
                mend = (
                    f"it has those of the data sets {', '.join(sets)}, on which a base policy was trained: "
                    "fine-tune it on your robot, or give statistics: FOLDER of a data set of your robot"
                )
            raise ValueError(f"{step.state_file} has no {name}; {mend}.")
        value = tensors.get_tensor(name)
    return finite_numbers(value.double().numpy(), f"{step.state_file}: {name}")
