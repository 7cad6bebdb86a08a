"""The cameras of a contract: which camera is which image of the policy, and what is known of each.

A camera is an image of the policy if the user says so, if it has the name that the training gave it, or if
there is only one of each. Nothing else tells which is which, so the pictures are written for somebody to look
at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import cv2
import yaml

from vla_accel_ros.contract.files.fields import UNKNOWN
from vla_accel_ros.contract.parts import NAME
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.sensing.survey import Stream, Survey
from vla_accel_ros.tools.contract.text import line, plain

AGE = "a default: the robot stops when its newest one is older"


@dataclass(frozen=True)
class Match:
    """A camera of the robot, and its image of the policy (UNKNOWN if nobody says); reason: who said so."""

    camera: str
    stream: Stream
    image: str
    reason: str


def camera_names(images: Iterable[str]) -> dict[str, str]:
    """Return the policy's images by names that a contract's cameras can have: their own where they can."""
    names: dict[str, str] = {}
    for image in images:
        name = image
        if not re.fullmatch(NAME, name) or yaml.safe_load(name) != name:
            name = "camera_" + re.sub("[^A-Za-z0-9_]", "_", image)
        while name in names:
            name += "_"
        names[name] = image
    return names


def images_of(model: Description) -> tuple[str, ...]:
    """The policy's images that want a camera: not earlier frames of another."""
    earlier = {image for ages_s in _history(model).values() for image in ages_s}
    return tuple(image for image in model.config.image_names if image not in earlier)


def _history(model: Description) -> Mapping[str, Mapping[str, float]]:
    """Image -> the images that are its earlier frames, with their ages [s] in training."""
    return getattr(model.config, "history", {})


def _history_lines(model: Description, image: str) -> list[str]:
    if not (ages_s := _history(model).get(image)):
        return []
    ages = ", ".join(f"{plain(name)}: {age_s:g}" for name, age_s in ages_s.items())
    return [line(2, "history", f"{{{ages}}}", "seconds before the newest, as published: or your training's")]


def match(model: Description, survey: Survey, mapping: Mapping[str, str]) -> list[Match]:
    """The cameras that the contract gets: those of the policy's images, and while an image has none, all
    others, too. mapping: camera, or its topic -> image.

    Raises ValueError if the mapping names what is not there.
    """
    cameras, images = survey.cameras, images_of(model)
    named = {stream.topic: name for name, stream in cameras.items()}
    reasons: dict[str, tuple[str, str]] = {}
    for key, image in mapping.items():
        camera = named.get(f"/{key.lstrip('/')}", key)
        if camera not in cameras:
            unusable = "".join(f"; not {s.topic}: {s.problem or 'it sent nothing'}" for s in survey.unusable)
            raise ValueError(
                f"--map {key}={image}: {survey.origin} has no camera {key} that a policy can use: "
                f"give one of {', '.join(cameras) or 'none'}{unusable}"
            )
        if image not in images and not model.any_camera:
            raise ValueError(
                f"--map {key}={image}: the model has no image {image}: give one of {', '.join(images)}"
            )
        reasons[camera] = image, "--map"
    for image in images:
        names = {image, model.camera_sources.get(image, image)}
        alike = [camera for camera in cameras if camera in names and camera not in reasons]
        if len(alike) == 1 and image not in dict(reasons.values()):
            reasons[alike[0]] = image, "its name, as in training"
    if not reasons and len(cameras) == len(images) == 1:
        reasons[next(iter(cameras))] = images[0], "the only camera, and the only image"
    complete = {image for image, _ in reasons.values()} >= set(images)
    return [
        Match(camera, stream, *reasons.get(camera, (UNKNOWN, "")))
        for camera, stream in cameras.items()
        if camera in reasons or not complete
    ]


def camera_lines(
    model: Description, survey: Survey, matches: list[Match], pictures: Mapping[str, Path]
) -> list[str]:
    """The section of a contract. pictures: files by camera."""
    assigned = {each.image for each in matches}
    free = [image for image in images_of(model) if image not in assigned]
    lines = []
    for each in matches:
        stream, reason = each.stream, each.reason
        if each.image == UNKNOWN:
            reason = f"one of {', '.join(free)}; or remove this camera"
        if each.camera in pictures:
            reason += f"; its picture: {pictures[each.camera]}"
        about = f"{survey.origin}: {stream.encoding[:40]}, {stream.width} x {stream.height}"
        rate = stream.rate_hz
        lines += [
            f"  {each.camera}:",
            line(2, "topic", survey.relative(stream.topic), about),
            line(2, "image", each.image if each.image == UNKNOWN else plain(each.image), reason),
        ]
        if stream.transport != "raw":
            lines.append(line(2, "transport", stream.transport, f"its type, {stream.type}"))
        if info := survey.info_of(stream):
            lines.append(line(2, "info", survey.relative(info), survey.origin))
        lines += [
            line(
                2,
                "rate_hz",
                f"{rate:.3g}" if rate else UNKNOWN,
                "by its stamps" if rate else "one message came",
            ),
            line(2, "max_age_s", f"{max(0.5, 5.0 / rate if rate else 0.5):.2g}", AGE),
            *_history_lines(model, each.image),
        ]
    if free and UNKNOWN not in assigned:
        lines.append(f"  # No camera was found for {', '.join(free)}.")
    return lines + [
        f"  # Not used: {stream.topic}: {stream.problem or 'it sent nothing'}"[:160]
        for stream in survey.unusable
    ]


def trained_lines(model: Description, survey: Survey | None) -> list[str]:
    """The section without cameras of a robot: without a survey, topics are those of this package's camera
    node."""
    lines = []
    for name, image in camera_names(images_of(model)).items():
        trained = model.camera_sources.get(image)
        topic = trained if trained is not None and re.fullmatch(NAME, trained) else name
        comment = "the checkpoint" if trained is None else f"the checkpoint: {image} ({trained} in training)"
        where = f"camera/{topic}/image_raw", "a default, of this package's camera node: or your driver's"
        if survey is not None:
            where = UNKNOWN, f"no camera of {survey.origin} sent a picture"
        lines += [
            f"  {name}:",
            line(2, "topic", *where),
            line(2, "image", plain(image), comment),
            line(2, "rate_hz", "30", "a default: or your camera's"),
            line(2, "max_age_s", "0.5", AGE),
            *_history_lines(model, image),
        ]
    return lines


def write_pictures(matches: Iterable[Match], folder: Path) -> dict[str, Path]:
    """Write a PNG of each camera; returns the files by camera. Raises OSError if one cannot be written."""
    files = {}
    for each in matches:
        if each.stream.picture is not None:
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{each.camera}.png"
            if not cv2.imwrite(str(file), cv2.cvtColor(each.stream.picture, cv2.COLOR_RGB2BGR)):
                raise OSError(f"{file} cannot be written: give another --files folder")
            files[each.camera] = file
    return files
