"""Convert bags to a dataset: plan each bag's episodes, then read its images once and encode them in order."""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from vla_accel_ros.recording.jumps import parts
from vla_accel_ros.recording.reader import Bag, Entry
from vla_accel_ros.tools.bags import COMPRESSED, IMAGE, image_stamp_ns, picture
from vla_accel_ros.tools.export.dataset import Dataset
from vla_accel_ros.tools.export.episodes import Episode, episodes
from vla_accel_ros.tools.export.quality import qualities
from vla_accel_ros.tools.export.streams import SUBTASK, Streams


def export(
    bags: Sequence[Path],
    output: Path,
    *,
    fps: int = 0,
    actions: str = "commanded",
    split: bool = True,
    task: str = "",
    robot: str = "",
    outcome: str = "",
    say: Callable[[str], object] = lambda _: None,
) -> int:
    """Write the episodes of the bags, in order, into a new dataset; return their number.

    fps: frames a second, 0 for the rate of the contract's actions. actions, split: see episodes. task:
    replaces the recorded instructions. robot: which robot of each bag, see Streams. outcome: only
    episodes that a person marked so. Raises ValueError, with
    one sentence, if a bag yields nothing or is of another robot than the first; FileExistsError if the output
    is not empty. An export that ends early, also by Ctrl-C, leaves no part of a dataset.
    """
    with _whole_or_nothing(output):
        dataset: Dataset | None = None
        first: Streams | None = None
        total = 0
        for path in bags:
            finished, left_out, nothing = list[Episode](), 0, list[ValueError]()
            faults = list[str]()
            for part in parts(Bag(path)):
                streams = Streams(part, task, robot)
                if dataset is None or first is None:
                    first = streams
                    fps = fps or round(1.0 / streams.contract.chunk.step_dt_s)
                    dataset = Dataset(output, streams.contract, fps, any(map(_has_subtasks, bags)))
                _check_same(first, streams)
                for joint, states in streams.misstamped.items():
                    say(
                        f"{path}: {states} states of joint {joint} have no stamp or one in the future, and "
                        "are left out: fix its driver"
                    )
                if streams.unreadable:
                    note = f"{len(streams.unreadable)} messages cannot be read; {streams.unreadable[0]}"
                    say(f"{path}: {note}")
                try:
                    runs, still = episodes(streams, fps, actions, split)
                    runs = [run for run in runs if not outcome or run.outcome == outcome]
                    if not runs:
                        raise ValueError(f"{path} has no episode that is marked {outcome}: give no --outcome")
                except ValueError as error:
                    nothing.append(error)
                    continue
                finally:
                    for lack in streams.lacking.values():
                        say(f"{path}: {lack}")
                _fill(dataset, streams, runs)
                faults += [str(quality) for quality in qualities(streams) if quality.faults]
                finished, left_out = finished + runs, left_out + still
            if nothing and not finished:
                raise nothing[0]
            for reason in nothing:
                say(f"{path}: its clock was set, and one of its parts is left out: {reason}")
            for line in (*_described(finished, left_out, fps), *faults):
                say(f"{path}: {line}")
            total += len(finished)
        if dataset is not None:
            dataset.finish()
    return total


def _described(episodes: list[Episode], left_out: int, fps: int) -> Iterator[str]:
    """Yield what a bag gave, what was left out of it, and which images repeat."""
    frames = sum(map(len, episodes))
    human = sum(int(episode.human.sum()) for episode in episodes)
    outcomes = Counter(episode.outcome for episode in episodes if episode.outcome)
    marked = "".join(f", {count} {outcome}" for outcome, count in outcomes.items())
    yield f"{len(episodes)} episodes{marked}, {frames} frames, {frames / fps:.1f} s"
    if human:
        yield f"{human} frames, {human / fps:.1f} s, are a person's (intervention)"
    if left_out:
        yield f"{left_out} frames, {left_out / fps:.1f} s, are left out: the robot was held"
    for camera in episodes[0].stamps_ns:
        repeated = sum(episode.repeated(camera) for episode in episodes)
        if repeated:
            share = repeated / frames
            yield (
                f"{repeated} frames ({share:.0%}) repeat the image of camera {camera} before them, which "
                f"came {fps * (1 - share):.1f} times a second: give a lower --fps"
            )


def _has_subtasks(path: Path) -> bool:
    bag = Bag(path)
    bag.survey()
    return any(topic.rpartition("/")[2] == SUBTASK for topic in bag.topics)


@contextmanager
def _whole_or_nothing(folder: Path) -> Iterator[None]:
    """Check that a folder is new or empty, and remove what the block has written into it if that raises."""
    new = not folder.exists()
    if not new and any(folder.iterdir()):
        raise FileExistsError(f"{folder} holds something already: give another --output")
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for part in folder.iterdir():
                shutil.rmtree(part, ignore_errors=True)
            if new:
                folder.rmdir()
        raise


def _check_same(first: Streams, other: Streams) -> None:
    ours, contract = first.contract, other.contract
    same = all(
        getattr(ours, names) == getattr(contract, names)
        for names in ("joint_names", "state_names", "action_names")
    )
    same &= first.topics.keys() == other.topics.keys()
    if not same:
        raise ValueError(
            f"{other.bag.path} is of {contract.robot} and {first.bag.path} of {ours.robot}, with other "
            "joints or cameras: export them apart"
        )
    if (ours.teleop is None) != (contract.teleop is None):
        raise ValueError(
            f"of the robots of {other.bag.path} and {first.bag.path} only one has teleop: export them apart"
        )
    if first.marked != other.marked:
        paths = first.bag.path, other.bag.path
        marked, plain = paths if first.marked else paths[::-1]
        raise ValueError(f"{marked} has marked episodes and {plain} has none: export them apart")


def _fill(dataset: Dataset, streams: Streams, episodes: list[Episode]) -> None:
    """Give every episode its images, as the policy gets them, in the order of the frames and as they are read
    from the bag."""
    lines = {camera: _Line(camera, episodes) for camera in streams.topics}
    cameras = {topic: camera for camera, topic in streams.topics.items()}
    views = {camera.name: camera.view for camera in streams.contract.cameras}
    ended = 0
    for entry in streams.part.entries((IMAGE, COMPRESSED)):
        if entry.topic not in cameras:
            continue
        lines[cameras[entry.topic]].arrive(entry)
        while ended < len(episodes):
            for camera, line in lines.items():
                for image in line.of(ended):
                    dataset.add_image(camera, np.ascontiguousarray(views[camera](image)))
            if not all(line.past(ended) for line in lines.values()):
                break
            dataset.add(episodes[ended])
            ended += 1
    if ended < len(episodes):
        raise ValueError(f"{streams.bag.path} has changed while it was read: export it again")


class _Line:
    """One camera's images on their way into frames; only images that are still needed are kept."""

    def __init__(self, camera: str, episodes: list[Episode]) -> None:
        self._frames = deque(
            (number, stamp)
            for number, episode in enumerate(episodes)
            for stamp in episode.stamps_ns[camera].tolist()
        )
        self._wanted = {stamp for _, stamp in self._frames}
        self._kept: dict[int, np.ndarray] = {}

    def arrive(self, entry: Entry) -> None:
        """Take the next image, if it can be read."""
        with suppress(ValueError):
            stamp = image_stamp_ns(entry)
            if stamp in self._wanted:
                self._kept[stamp] = picture(entry)
                self._wanted.remove(stamp)

    def of(self, number: int) -> Iterator[np.ndarray]:
        """Yield the next frames of an episode that have arrived."""
        while self._frames and self._frames[0][0] == number and self._frames[0][1] in self._kept:
            stamp = self._frames.popleft()[1]
            yield self._kept[stamp]
            if not (self._frames and self._frames[0][1] == stamp):
                del self._kept[stamp]

    def past(self, number: int) -> bool:
        """Return whether an episode has all its frames."""
        return not self._frames or self._frames[0][0] > number
