"""The settings of an openpi training that change actions and that no file of its checkpoint holds.

Wrong ones move a robot to the wrong place without any error, so they are asked for. Answers are the name of a
public configuration of openpi, its own names for the settings, or our section of config.json, where
`vla convert` keeps them. The name of a folder is no answer, and two answers that differ are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.config import MOST, TRAINED_AS

HORIZON, DELTA = "action_horizon", "delta_action_mask"
EXAMPLE = {
    HORIZON: "N",
    "discrete_state_input": "true",
    "use_quantile_norm": "true",
    "adapt_to_pi": "false",
    DELTA: "6,-1",
}
"""An answer to each setting, for errors."""


@dataclass(frozen=True)
class Training:
    """openpi's names; None is unknown.

    action_horizon: actions in a chunk. discrete_state_input: whether pi0.5's prompt has the state.
    use_quantile_norm: by quantiles 1 and 99 %, not by mean and deviation. adapt_to_pi: whether ALOHA's joints
    and grippers are in pi's units. delta_action_mask: as in openpi's make_bool_mask: 6, -1 are six actions
    relative to the state and one absolute; further ones are absolute, so are all of ().
    """

    action_horizon: int | None = None
    discrete_state_input: bool | None = None
    use_quantile_norm: bool | None = None
    adapt_to_pi: bool | None = None
    delta_action_mask: tuple[int, ...] | None = None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the settings that nobody has said."""
        return tuple(name for name, value in asdict(self).items() if value is None)

    def relative(self, width: int) -> np.ndarray | None:
        """bool [D] for D actions: which are relative to the state; None if unknown."""
        if self.delta_action_mask is None:
            return None
        mask = [count > 0 for count in self.delta_action_mask for _ in range(abs(count))]
        return np.array([*mask, *[False] * width][:width], np.bool_)

    def to_json(self) -> dict[str, Any]:
        """The settings that are known, but for the horizon, which is one of the sizes."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != HORIZON}


@dataclass(frozen=True)
class Public:
    """A public configuration: the kind of network, the settings, and what an action is, in words."""

    kind: str
    training: Training
    actions: str

    @property
    def moves_joints(self) -> bool:
        """Whether actions are targets of joints, absolute or relative."""
        return self.actions not in (_VELOCITIES, _LIBERO)


USUAL = {
    "pi0": Training(None, False, False, False),
    "pi05": Training(None, True, True, False),
    "pi0_fast": Training(None, True, True, False),
}
"""Each kind's defaults: those of our folders that were written before they kept these settings."""
_PI0, _PI05 = Training(50, False, False, False, ()), Training(50, True, True, False, ())
_FAST = Training(10, True, True, False, ())
_ALOHA, _SEVEN, _HAND = (6, -1, 6, -1), (7, -1), (6, -1)
_VELOCITIES, _JOINTS = "velocities of seven joints and a gripper", "seven joints and a gripper"
_BOTH, _LIBERO = "ALOHA's two arms, six joints and a gripper each", "a displacement of the hand and a gripper"
PUBLIC: Mapping[str, Public] = {
    **{
        name: Public("pi0", replace(_PI0, adapt_to_pi=True, delta_action_mask=_ALOHA), _BOTH)
        for name in ("pi0_aloha", "pi0_aloha_towel", "pi0_aloha_tupperware", "pi0_aloha_pen_uncap")
    },
    **{
        name: Public("pi05", replace(_PI05, adapt_to_pi=True, delta_action_mask=_ALOHA), _BOTH)
        for name in ("pi05_aloha", "pi05_aloha_pen_uncap")
    },
    "pi0_aloha_sim": Public("pi0", replace(_PI0, adapt_to_pi=True), _BOTH),
    "pi0_droid": Public("pi0", replace(_PI0, action_horizon=10), _VELOCITIES),
    "pi05_droid": Public("pi05", replace(_PI05, action_horizon=15), _VELOCITIES),
    "pi05_droid_finetune": Public("pi05", replace(_PI05, action_horizon=16), _VELOCITIES),
    "pi05_full_droid_finetune": Public(
        "pi05", replace(_PI05, action_horizon=16, delta_action_mask=_SEVEN), _JOINTS
    ),
    "pi05_droid_jointpos_polaris": Public(
        "pi05", replace(_PI05, action_horizon=15, delta_action_mask=_SEVEN), _JOINTS
    ),
    **{
        name: Public("pi0", replace(_PI0, action_horizon=10, delta_action_mask=_SEVEN), _JOINTS)
        for name in ("pi0_droid_jointpos_polaris", "pi0_droid_jointpos_100k_polaris")
    },
    **{
        name: Public("pi0", replace(_PI0, delta_action_mask=_HAND), _LIBERO)
        for name in ("pi0_libero", "pi0_libero_low_mem_finetune")
    },
    "pi05_libero": Public("pi05", replace(_PI05, action_horizon=10, discrete_state_input=False), _LIBERO),
    "pi0_fast_droid": Public("pi0_fast", _FAST, _VELOCITIES),
    "pi0_fast_full_droid_finetune": Public(
        "pi0_fast", replace(_FAST, action_horizon=16, delta_action_mask=_SEVEN), _JOINTS
    ),
    "pi0_fast_libero": Public("pi0_fast", replace(_FAST, delta_action_mask=_HAND), _LIBERO),
    "paligemma_diffusion_droid": Public("pi0", replace(_PI0, action_horizon=10), _VELOCITIES),
}
"""From openpi's training/config.py and training/misc (commit 15a9616a). Those of low memory hold LoRA
adapters, to be merged first."""


def read_training(where: Path, stored: Mapping[str, Any], said: str, kind: str) -> Training:
    """Return what a folder and its user say together.

    where: the folder. stored: the answers in its config.json. said: the user's. kind: of its network.
    Raises ValueError if a setting is unknown or malformed, or if two answers differ.
    """
    file = where / "config.json"
    ours = Training(**{name: _value(name, value, f"{file}: {name}") for name, value in stored.items()})
    training = parse_training(said, kind)
    for field in fields(Training):
        first, second = getattr(ours, field.name), getattr(training, field.name)
        if None not in (first, second) and first != second:
            raise ValueError(
                f"{field.name} is {first} in {file} but {second} by {TRAINED_AS} {said!r}; give the settings "
                "of its own training."
            )
    settings = {name: value for name, value in asdict(training).items() if value is not None}
    if kind == "pi0":
        settings["discrete_state_input"] = False
    if kind == "pi0_fast":
        settings |= {"discrete_state_input": True, "use_quantile_norm": True}
    return replace(ours, **settings)


def parse_training(said: str, kind: str) -> Training:
    """Read "NAME", "SETTING=VALUE ..." or both; settings after a name replace those of the name.

    Raises ValueError, with one sentence, for anything else, and for a configuration of another kind.
    """
    training = Training()
    for index, word in enumerate(said.split()):
        name, equals, value = word.partition("=")
        where = f"{TRAINED_AS} {said!r}: {name}"
        if equals and name in EXAMPLE:
            training = replace(training, **{name: _value(name, _number(name, value), where)})
        elif equals or index or word not in PUBLIC:
            examples = ", ".join(EXAMPLE) if equals else ", ".join(PUBLIC)
            raise ValueError(f"{where} is not known; give {examples}.")
        elif PUBLIC[word].kind != kind:
            raise ValueError(
                f"{where} is of a {PUBLIC[word].kind}, but the weights are those of a {kind}; give the "
                "configuration that it was trained with."
            )
        else:
            training = PUBLIC[word].training
    return training


def ask(where: Path, names: tuple[str, ...]) -> ValueError:
    """The error that asks for these settings of a folder."""
    example = " ".join(f"{name}={EXAMPLE[name]}" for name in names)
    return ValueError(
        f"{where}: no file says {', '.join(names)}, which only the settings of its training do; give "
        f"{TRAINED_AS} (--as on the command line), a public configuration of openpi such as pi05_libero, or, "
        f"as they were, '{example}'."
    )


def _number(name: str, text: str) -> Any:
    """The setting's value in JSON for text as typed; the text itself if it is none."""
    if name == DELTA:
        try:
            return [] if text == "none" else [int(count) for count in text.split(",")]
        except ValueError:
            return text
    if name == HORIZON:
        return int(text) if text.isdecimal() else text
    return {"true": True, "false": False}.get(text.lower(), text)


def _value(name: str, value: Any, where: str) -> Any:
    """Check a setting's value from JSON. Raises ValueError naming `where`."""
    if name == HORIZON:
        if type(value) is int and value >= 1:
            return value
        raise ValueError(f"{where} is {value!r}; it must be a whole number from 1.")
    if name == DELTA:
        whole = isinstance(value, list) and all(type(count) is int and count for count in value)
        if whole and sum(map(abs, value)) <= MOST["action_dim"]:
            return tuple(value)
        raise ValueError(f"{where} is {value!r}; give counts as openpi's make_bool_mask, 6,-1, or none.")
    if name in EXAMPLE:
        if isinstance(value, bool):
            return value
        raise ValueError(f"{where} is {value!r}; give true or false.")
    raise ValueError(f"{where} is not known; give {', '.join(EXAMPLE)}.")
