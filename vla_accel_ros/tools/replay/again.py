"""Computes the recorded moments again with an engine of its own, and compares the results.

The engine is made from the session's settings, except for what the caller changes; robots that shared an
engine share one here. Equal means bit for bit: the actions as published, the magnitudes of their last
denoising updates, and the letters of answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from tqdm import tqdm

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Camera
from vla_accel_ros.engine.config import AUTO, FRESH_FIRST, NO_PARTITION, EngineConfig
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.session import JPEG, JPEG_BY, Session, device_name, session_of
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.option import options
from vla_accel_ros.recording.robots import contract_of
from vla_accel_ros.tools.replay.moments import Moment, Moments, RecordedChunk, network_view
from vla_accel_ros.tools.replay.report import Difference, Result
from vla_accel_ros.types import Observation

EVERY_S = 5.0
"""Seconds between reports of progress."""


@dataclass(frozen=True)
class Otherwise:
    """What to change from the recording; an empty field means as recorded."""

    model: Path | None = None
    device: str = ""
    dtype: str = ""
    trained_as: str = ""


def replay(
    moments: Moments, otherwise: Otherwise = Otherwise(), say: Callable[[str], object] = lambda _: None
) -> Result:
    """Replay every moment that has a chunk or an answer, and compare.

    say: gets sentences for the user about progress. Raises ValueError if the model folder is missing or does
    not fit the contract.
    """
    result = Result()
    with tqdm(desc="replayed", total=moments.worth_replaying, mininterval=EVERY_S) as progress:
        for sessions in _by_engine(moments.sessions.values()):
            _replay(moments, sessions, otherwise, say, result, progress)
    return result


def _by_engine(sessions: Iterable[Session]) -> list[list[str]]:
    """Return the ids of the sessions that can share an engine, for each engine. They are replayed engine by
    engine, since two may not fit into memory and each takes long to load."""
    groups: list[list[Session]] = []
    for session in sessions:
        shared = next((group for group in groups if group[0].shares_engine(session)), None)
        if shared is None:
            groups.append([session])
        else:
            shared.append(session)
    return [[session.id for session in group] for group in groups]


def _replay(
    moments: Moments,
    sessions: Collection[str],
    otherwise: Otherwise,
    say: Callable[[str], object],
    result: Result,
    progress: tqdm[None],
) -> None:
    """Replay the moments of sessions that share an engine; the engine is freed on return."""
    stages: dict[str, _Stage] = {}
    for moment in moments.of(sessions):
        if not (moment.chunks or moment.texts):
            continue
        session = moment.session
        if session.id not in stages:
            stages[session.id] = _Stage(session, otherwise, say, next(iter(stages.values()), None))
            result.notes += [note for note in stages[session.id].notes if note not in result.notes]
        started = time.perf_counter()
        stages[session.id].play(moment, result)
        result.seconds += time.perf_counter() - started
        result.frames += 1
        progress.update()


class _Stage:
    """An engine made from a session, and its contract. beside: the stage of a robot that may share its
    engine."""

    def __init__(
        self,
        session: Session,
        otherwise: Otherwise,
        say: Callable[[str], object],
        beside: _Stage | None = None,
    ) -> None:
        self.session, settings = session, session.by_name()
        self._jpeg_quality: int | None = settings.get(JPEG)
        model = otherwise.model or Path(session.model)
        if not model.is_dir():
            raise ValueError(
                f"{model}, whose chunks are in the bag, does not exist: give --model DIR, a copy of it"
            )
        if beside is None:
            say(f"session {session.id[:8]}: checking {model}")
        self._found: str
        self._found = found = checksum(model) if beside is None else beside._found
        if beside is None and session.checksum and found != session.checksum:
            say(
                f"{model} is not the recorded model (SHA-256 {found[:12]}, recorded "
                f"{session.checksum[:12]}): give --model DIR, a copy of the recorded one"
            )
        self.contract = contract_of(session)
        load = _load(session, model, otherwise)
        self._robot = "" if beside is None else session.id
        if beside is None or not beside.takes(self._robot, load, self.contract):
            self._engine, self._robot = load.engine(self.contract, say), ""
        else:
            self._engine = beside._engine
        present = session_of(
            self._engine,
            {**load.settings, **({JPEG_BY: cv2.__version__} if self._jpeg_quality else {})},
            model=model,
            contract=session.contract,
            urdf=session.urdf,
            topics={},
            checksum=found,
            robot=self._robot,
        )
        self.notes = [*company(settings), *session.differences(present)]
        self._answer_tokens = load.config.answer_tokens
        say(f"on {present.device}, {load.dtype}")

    def takes(self, robot: str, load: Load, contract: Contract) -> bool:
        """Add a robot to the engine if it has room for the robot's actions; return whether it serves that
        robot."""
        embodiment = load.embodiment(self._engine.policy, contract)
        robots = self._engine.runner.robots
        if robots.has_room(embodiment.policy):
            robots.add(robot, embodiment)
        return robot in robots.names

    def play(self, moment: Moment, result: Result) -> None:
        """Replay one moment, and note the differences in `result`."""
        images = {
            camera.image: network_view(camera, moment.images[camera.name], self._jpeg_quality)
            for camera in self._seen(moment)
        }
        observation = Observation(
            images, moment.state, moment.instruction, moment.stamp_ns, robot=self._robot
        )
        with self._engine.observe(observation) as prefix:
            for chunk in moment.chunks:
                result.chunks += 1
                difference = self._differs(prefix, chunk)
                if difference is not None:
                    result.different_chunks.append(difference)
            for prompt, text in moment.texts:
                answer = self._said(prefix, prompt)
                result.texts += 1
                if answer != text:
                    result.different_texts.append(
                        Difference(
                            f"at {moment.stamp_ns * 1e-9:.3f} s: {text!r} recorded, {answer!r} here", np.nan
                        )
                    )

        self._engine.runner.prefixes.remove(self._robot)

    def _differs(self, prefix: Prefix, chunk: RecordedChunk) -> Difference | None:
        """Compare a recorded chunk with the one made here; return the difference or None.

        With staggering "fresh" the first chunk of a frame was denoised whole and later ones in seats, whose
        bits differ on a GPU. The recording does not say which, so both are tried.
        """
        config, mismatch = self._engine.config, None
        for steps in (None, config.steps) if config.staggering == FRESH_FIRST else (None,):
            chunk_here = self._engine.act(
                *(prefix, chunk.state, chunk.request_id),
                agreement=chunk.agreement,
                steps=steps,
                step_states=None if steps else chunk.step_states,
            )
            actions = self.contract.to_robot(chunk_here.actions).astype(np.float32)
            mismatch = difference(chunk, actions, chunk_here.update_magnitudes)
            if mismatch is None:
                break
        return mismatch

    def _said(self, prefix: Prefix, prompt: str) -> str:
        """Return the whole answer to the prefix's own prompt, or to a question about its frame."""
        with self._engine.ask(prefix, prompt, max_tokens=self._answer_tokens) as answer:
            return "".join(answer)

    def _seen(self, moment: Moment) -> list[Camera]:
        return [picture for picture in self.contract.pictures if picture.name in moment.images]


def company(settings: Mapping[str, object]) -> list[str]:
    """Return a phrase for each setting by which a chunk may have been computed in a batch with others.

    The bag does not record such batches. Results from a batch differ by rounding from those computed alone.
    Empty if batching changes no bit. Noise of version 0.2 that went is named, too.
    """
    notes = []
    if settings.get("noise") == "coherent":
        notes.append("noise coherent: this version has no such noise")
    if int(str(settings.get("frames_together", 1))) > 1:
        notes.append(f"frames_together {settings['frames_together']}: frames were batched with others'")
    if settings.get("seats_by_load"):
        notes.append("seats_by_load: the batch of a step had as many seats as were taken")
    return notes


def difference(chunk: RecordedChunk, actions: np.ndarray, magnitudes: np.ndarray) -> Difference | None:
    """Compare actions [H, A] float32 in ROS units and magnitudes [H] float32 with a recorded chunk's; return
    None if they are equal bit for bit."""
    who = f"request {chunk.request_id}, observed at {chunk.stamp_ns * 1e-9:.3f} s"
    if actions.shape != chunk.actions.shape:
        recorded, present = ("x".join(map(str, shape)) for shape in (chunk.actions.shape, actions.shape))
        return Difference(f"{who}: {recorded} actions recorded, {present} here", np.inf)
    other = actions.view(np.uint32) != chunk.actions.view(np.uint32)
    if other.any():
        row, column = np.argwhere(other)[0]
        gaps = np.abs(actions.astype(np.float64) - chunk.actions)
        worst, joint = np.unravel_index(np.nanargmax(gaps), gaps.shape)
        text = (
            f"{who}: {other.sum()} of {other.size} numbers; first in row {row}, {chunk.joints[column]}: "
            f"{chunk.actions[row, column]:.9g} recorded, {actions[row, column]:.9g} here; largest difference "
            f"{gaps[worst, joint]:.3g} in row {worst}, {chunk.joints[joint]}"
        )
        return Difference(text, float(gaps[worst, joint]))
    if magnitudes.tobytes() != chunk.magnitudes.tobytes():
        return Difference(f"{who}: equal actions, but other denoising updates", 0.0)
    return None


def _load(session: Session, model: Path, otherwise: Otherwise) -> Load:
    """Return the settings of the session's engine that this version knows, with the wanted changes.

    Sessions without a solver are older than the option: they used euler. A partition changes bits only
    through its launch table, which belongs to one kind of device; on another one no partition is used.
    """
    settings = {"solver": EULER, **session.by_name()}
    if "partition" in settings and (settings["partition"] == AUTO or session.device != _gpu()):
        settings["partition"] = NO_PARTITION
    config = EngineConfig(**{name: settings[name] for name in options(EngineConfig) if name in settings})
    settings = {name: settings[name] for name in vars(Load(model)) if name in settings}
    changes = {"device": otherwise.device, "dtype": otherwise.dtype, "trained_as": otherwise.trained_as}
    if "prompt_state=" in otherwise.trained_as:
        changes["prompt_state"] = AUTO
    return Load(model, config, **{**settings, **{name: change for name, change in changes.items() if change}})


def _gpu() -> str:
    """Return the name of this machine's GPU, "" without one."""
    return device_name(torch.device("cuda")) if torch.cuda.is_available() else ""
