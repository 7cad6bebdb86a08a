"""What policy servers of openpi's wire ask and answer differently: a class for each form.

openpi: a map with `actions`, a bare array, or one array by its output's name; also pi.cpp and SGLang.
vllm-omni: sessions, reset on each new connection. starvla: an envelope. galaxea: one step after another,
asked for by empty maps, which become a chunk here; the state's parts count, an absent one stays as it was.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from vla_accel_ros.contract.sections.keys import GALAXEA, OPENPI, STARVLA, VLLM_OMNI

LETTERS = 300
GALAXEA_NAMES = {"joint_position": "right_arm", "gripper": "right_gripper"}
"""Other names that GalaxeaVLA's parts of an action may have."""
MOST_ACTIONS, MOST_DIMS = 1024, 256
Request = Mapping[str, Any]


class ServerError(RuntimeError):
    """The server answered with an error, or with what cannot be used; a sentence."""


class Openpi:
    """Requests and answers as openpi has them."""

    reset: ClassVar[Request | None] = None
    """What a new connection sends first."""

    def wrap(self, request: Request) -> Request:
        """What is sent of a request."""
        return request

    def continues(self, answers: Sequence[Any]) -> bool:
        """Whether the chunk goes on in the answer to an empty map."""
        return False

    def actions(self, answers: Sequence[Any], request: Request) -> np.ndarray:
        """float32 [H, D], finite. Raises ServerError."""
        return actions_of(answers[0])


class VllmOmni(Openpi):
    """One session for each client."""

    reset: ClassVar[Request | None] = {"endpoint": "reset"}

    def __init__(self) -> None:
        self._session = uuid.uuid4().hex

    def wrap(self, request: Request) -> Request:
        return {**request, "session_id": self._session}


class Starvla(Openpi):
    """An envelope around examples, of which there is one."""

    def wrap(self, request: Request) -> Request:
        example = dict(request)
        names = {key: example.pop(key) for key in ("unnorm_key",) if key in example}
        return {"type": "infer", "request_id": "0", "payload": {"examples": [example], **names}}


class Galaxea(Openpi):
    """A step at a time, until the server needs an observation."""

    reset: ClassVar[Request | None] = {"__reset__": True}

    def continues(self, answers: Sequence[Any]) -> bool:
        last = answers[-1]
        return len(answers) < MOST_ACTIONS and isinstance(last, dict) and last.get("need_obs") is False

    def actions(self, answers: Sequence[Any], request: Request) -> np.ndarray:
        state = request.get("state")
        parts = dict(state) if isinstance(state, Mapping) else {}
        steps: list[np.ndarray] = []
        for answer in answers:
            check_error(answer)
            action = answer.get("action") if isinstance(answer, dict) else None
            if not isinstance(action, dict) or not action:
                raise ServerError("the answer has no action")
            action = {GALAXEA_NAMES.get(name, name): part for name, part in action.items()}
            if parts and not action.keys() & parts.keys():
                raise ServerError(f"the action has {_list(action)}, but the state has {_list(parts)}")
            parts |= {name: part for name, part in action.items() if not state or name in parts}
            steps.append(np.concatenate([_numbers(part).ravel() for part in parts.values()]))
        if len({len(step) for step in steps}) != 1:
            raise ServerError("the steps of a chunk have different numbers of joints")
        return _checked(np.stack(steps))


DIALECT: Mapping[str, type[Openpi]] = {
    OPENPI: Openpi, VLLM_OMNI: VllmOmni, STARVLA: Starvla, GALAXEA: Galaxea
}  # fmt: skip


def actions_of(answer: Any) -> np.ndarray:
    """float32 [H, D] from an answer of any dialect of one answer, [H, D] or [1, H, D]. Raises ServerError."""
    check_error(answer)
    if isinstance(answer, dict):
        data = answer.get("data")
        if isinstance(data, dict) and "actions" in data:  # StarVLA
            answer = data
        values = [answer[name] for name in ("actions", "action_chunk") if name in answer]
        arrays = [value for value in answer.values() if isinstance(value, np.ndarray) and value.ndim > 1]
        if not values and len(arrays) == 1:  # vLLM-Omni: by the name of the output
            values = arrays
        if not values:
            raise ServerError(f"the answer has no actions, but {_list(answer)}")
        answer = values[0]
    actions = _numbers(answer)
    return _checked(actions[0] if actions.ndim == 3 and len(actions) == 1 else actions)


def check_error(answer: Any) -> None:
    """Raises ServerError if the answer is an error's."""
    if not isinstance(answer, dict):
        return
    error, kind = (
        value.tolist() if isinstance(value, np.ndarray) else value
        for value in map(answer.get, ("error", "type"))
    )
    if kind == "error" or error or answer.get("ok") is False:
        message = error.get("message", error) if isinstance(error, dict) else error or answer.get("message")
        text = "" if message is None else last_line(str(message))
        raise ServerError(f"the server reports: {text or 'an error'}")


def brief(text: str) -> str:
    """One line of what a server wrote."""
    return " ".join(text[: 4 * LETTERS].split())[:LETTERS]


def last_line(text: str) -> str:
    """One line of what a server wrote; of a traceback what it ends with."""
    return brief(text.strip().splitlines()[-1] if text.startswith("Traceback") else text)


def _list(names: Mapping[Any, Any]) -> str:
    return brief(", ".join(map(str, list(names)[:8]))) or "nothing"


def _numbers(value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ServerError("the actions are no array") from error
    if array.dtype.kind not in "iuf":
        raise ServerError(f"the actions are {array.dtype}, not numbers")
    return array


def _checked(actions: np.ndarray) -> np.ndarray:
    if actions.ndim != 2 or not 0 < len(actions) <= MOST_ACTIONS or not 0 < actions.shape[1] <= MOST_DIMS:
        raise ServerError(f"the actions have the shape {list(actions.shape)}, not [H, D]")
    with np.errstate(over="ignore"):
        actions = actions.astype(np.float32)
    if not np.isfinite(actions).all():
        raise ServerError("the actions are not finite")
    return actions
