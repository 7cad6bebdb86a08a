"""The recorded moments through an engine of our own, how what it makes differs from what was made, and the
report of it.

The engine is made by the session, with whatever the caller wants otherwise; sessions of robots that shared an
engine share one here. Equal means equal to the bit: actions as they were sent and the sizes of their last
denoising updates, and answers letter by letter.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import cv2
import numpy as np
import torch

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Camera
from vla_accel_ros.engine.config import AUTO, FRESH_FIRST, NO_PARTITION
from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.session import JPEG, JPEG_BY, Session, device_name, session_of
from vla_accel_ros.fleet.replicas.decoding import pixels_of
from vla_accel_ros.fleet.robot.observing import jpeg_of
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.models.flow.noise import FRESH
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.tools.replay.moments import Moment, Moments, RecordedChunk, contract_file
from vla_accel_ros.tools.replay.report import Difference, Progress, Result
from vla_accel_ros.types import Observation


@dataclass(frozen=True)
class Otherwise:
    """What is to be another than recorded; empty is as recorded."""

    model: Path | None = None
    device: str = ""
    dtype: str = ""


def replay(
    moments: Moments,
    otherwise: Otherwise = Otherwise(),
    say: Callable[[str], object] = lambda _: None,
) -> Result:
    """Run every moment that came to something and compare.

    say: gets a sentence for the user now and then, of how far it is among them. Raises ValueError when the
    model is not there or does not fit the contract.
    """
    result = Result()
    progress = Progress("replayed", moments.worth_replaying, say)
    stages: dict[str, _Stage] = {}
    for moment in moments:
        if not (moment.chunks or moment.texts):
            continue
        session = moment.session
        if session.id not in stages:
            beside = next(iter(stages.values()), None)
            if beside is None or not beside.session.shares_engine(session):
                beside, stages = None, {}  # what was loaded goes before another comes
            stages[session.id] = _Stage(session, otherwise, say, beside)
            result.notes += [note for note in stages[session.id].notes if note not in result.notes]
        stage = stages[session.id]
        started = time.perf_counter()
        stage.play(moment, result)
        result.seconds += time.perf_counter() - started
        result.frames += 1
        progress.at(result.frames)
    return result


class _Stage:
    """An engine as a session's, and its contract. beside: of a robot that shares its engine."""

    def __init__(
        self,
        session: Session,
        otherwise: Otherwise,
        say: Callable[[str], object],
        beside: _Stage | None = None,
    ) -> None:
        self.session, settings = session, json.loads(session.settings)
        self._jpeg_quality: int | None = settings.get(JPEG)
        model = otherwise.model or Path(session.model)
        if not model.is_dir():
            raise ValueError(
                f"{model}, which made the chunks of the bag, is not there: give --model DIR, a copy of it"
            )
        if beside is None:
            say(f"session {session.id[:8]}: checking {model}")
        self._found: str
        self._found = found = checksum(model) if beside is None else beside._found
        if beside is None and session.checksum and found != session.checksum:
            say(
                f"{model} is another model than the one that was recorded (SHA-256 {found[:12]}, recorded "
                f"{session.checksum[:12]}): give --model DIR, a copy of that"
            )
        with tempfile.TemporaryDirectory() as folder:
            file = contract_file(session, Path(folder))
            self.contract = Contract.load(file)
            load = _load(session, model, otherwise)
            self._robot = "" if beside is None else session.id
            if beside is None or not beside.takes(self._robot, load, self.contract):
                self._engine, self._robot = load.engine(self.contract, say), ""
            else:
                self._engine = beside._engine
            here = session_of(
                self._engine,
                {
                    **{name: choice for name, choice in vars(load).items() if name != "model"},
                    **({JPEG_BY: cv2.__version__} if self._jpeg_quality else {}),
                },
                model=model,
                contract=session.contract,
                urdf=session.urdf,
                topics={},
                checksum=found,
                robot=self._robot,
            )
        self.notes = [*company(settings), *session.differences(here)]
        self._answer_tokens = load.answer_tokens
        say(f"on {here.device}, {load.dtype}")

    def takes(self, robot: str, load: Load, contract: Contract) -> bool:
        """Have the engine serve a further robot, if it has room for its actions."""
        embodiment = load.embodiment(self._engine.policy, contract)
        robots = self._engine.runner.robots
        if robots.has_room(embodiment.policy):
            robots.add(robot, embodiment)
        return robot in robots.names

    def play(self, moment: Moment, result: Result) -> None:
        """Run one moment, and note what differs."""
        images = {camera.image: self._picture(camera, moment) for camera in self._seen(moment)}
        observation = Observation(
            images, moment.state, moment.instruction, moment.stamp_ns, robot=self._robot
        )
        with self._engine.observe(observation) as prefix:
            for chunk in moment.chunks:
                result.chunks += 1
                found = self._differs(prefix, chunk)
                if found is not None:
                    result.different_chunks.append(found)
            for prompt, text in moment.texts:
                said = self._said(prefix, prompt)
                result.texts += 1
                if said != text:
                    result.different_texts.append(
                        Difference(
                            f"at {moment.stamp_ns * 1e-9:.3f} s: {text!r} recorded, {said!r} here", np.nan
                        )
                    )

        self._engine.runner.prefixes.remove(self._robot)

    def _differs(self, prefix: Prefix, chunk: RecordedChunk) -> Difference | None:
        """A recorded chunk beside the one that is made here. With staggering "fresh" the first chunk of a
        frame was denoised whole and the others in seats, whose bits differ on a GPU: it was either."""
        config, found = self._engine.config, None
        for steps in (None, config.steps) if config.staggering == FRESH_FIRST else (None,):
            again = self._engine.act(
                *(prefix, chunk.state, chunk.request_id),
                agreement=chunk.agreement,
                steps=steps,
                step_states=None if steps else chunk.step_states,
            )
            actions = self.contract.to_robot(again.actions).astype(np.float32)
            found = difference(chunk, actions, again.update_magnitudes)
            if found is None:
                break
        return found

    def _said(self, prefix: Prefix, prompt: str) -> str:
        """A whole answer: to the prefix's own prompt, or to a question about its frame."""
        with self._engine.ask(prefix, prompt, max_tokens=self._answer_tokens) as answer:
            return "".join(answer)

    def _picture(self, camera: Camera, moment: Moment) -> np.ndarray:
        """As the engine was given it: a robot may have sent a fleet what is recorded as pixels as JPEG."""
        pixels = moment.images[camera.name]
        if self._jpeg_quality is None or camera.transport == "compressed":
            return pixels
        return pixels_of(camera.name, jpeg_of(pixels, self._jpeg_quality), camera.max_pixels)

    def _seen(self, moment: Moment) -> list[Camera]:
        return [camera for camera in self.contract.cameras if camera.name in moment.images]


def company(settings: Mapping[str, object]) -> list[str]:
    """What an engine may have computed a chunk together with, which is not recorded, a phrase each: then its
    numbers differ by rounding from those of one that is alone. Empty where company changes no bit."""
    found = []
    if int(str(settings.get("frames_together", 1))) > 1:
        found.append(f"frames_together {settings['frames_together']}: frames were computed with others'")
    if settings.get("seats_by_load"):
        found.append("seats_by_load: a step was computed with as many seats as were taken")
    return found


def difference(chunk: RecordedChunk, actions: np.ndarray, magnitudes: np.ndarray) -> Difference | None:
    """How actions, float32 [H, A] in ROS units, and magnitudes, float32 [H], differ from a recorded chunk's;
    None when they are equal to the bit."""
    who = f"request {chunk.request_id}, observed at {chunk.stamp_ns * 1e-9:.3f} s"
    if actions.shape != chunk.actions.shape:
        was, here = ("x".join(map(str, shape)) for shape in (chunk.actions.shape, actions.shape))
        return Difference(f"{who}: {was} actions recorded, {here} here", np.inf)
    other = actions.view(np.uint32) != chunk.actions.view(np.uint32)
    if other.any():
        row, column = np.argwhere(other)[0]
        apart = np.abs(actions.astype(np.float64) - chunk.actions)
        worst, at = np.unravel_index(np.nanargmax(apart), apart.shape)
        sentence = (
            f"{who}: {other.sum()} of {other.size} numbers; first in row {row}, {chunk.joints[column]}: "
            f"{chunk.actions[row, column]:.9g} recorded, {actions[row, column]:.9g} here; largest difference "
            f"{apart[worst, at]:.3g} in row {worst}, {chunk.joints[at]}"
        )
        return Difference(sentence, float(apart[worst, at]))
    if magnitudes.tobytes() != chunk.magnitudes.tobytes():
        return Difference(f"{who}: equal actions, but other denoising updates", 0.0)
    return None


def _load(session: Session, model: Path, otherwise: Otherwise) -> Load:
    """How the session's engine was made, as far as this version knows of it, and what is wanted otherwise.

    Sessions that name no noise or solver are from before there was a choice: theirs were fresh and euler. A
    partition changes bits
    only by a launch table for its numbers, on the device that it is for: elsewhere there is none.
    """
    known = {field.name for field in fields(Load)}
    settings = {name: choice for name, choice in json.loads(session.settings).items() if name in known}
    if "partition" in settings and (settings["partition"] == AUTO or session.device != _gpu()):
        settings["partition"] = NO_PARTITION
    wanted = {"device": otherwise.device, "dtype": otherwise.dtype}
    return Load(
        **{
            "noise": FRESH,
            "solver": EULER,
            **settings,
            **{n: w for n, w in wanted.items() if w},
            "model": model,
        }
    )


def _gpu() -> str:
    """The name of this machine's, empty without one."""
    return device_name(torch.device("cuda")) if torch.cuda.is_available() else ""
