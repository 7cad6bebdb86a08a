"""Everything that a node `inference` knows and says about its inputs, without ROS, threads or a clock.

The node takes messages in, observes, and notes the chunks that are made from its observations. From that come
the report on the topic `inputs` (what is received, how fast chunks are made, what they wait for), the reasons
for the log why no chunk is made, and the state of every stream. A report does not wait for the model, so one
that takes seconds does not silence it. Both nodes use it, whether an engine here or a fleet makes the chunks.

The instruction is kept over a restart, because its sender may be gone (`ros2 topic pub --once`, `vla say`).
After a crash it is restored, unless the node is told to forget. After a clean end it is not: a robot that is
switched on must not begin with yesterday's instruction. In both cases a sentence says what happened to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.pace import ChunkPace
from vla_accel_ros.control.following.reasons import unnumbered
from vla_accel_ros.control.following.watchdog import Late
from vla_accel_ros.control.state_file import LARGEST, Restored
from vla_accel_ros.sensing.arrivals import Inputs
from vla_accel_ros.sensing.ingest import NO_INSTRUCTION, Ingest
from vla_accel_ros.sensing.trained import TrainedInputs, TrainedState
from vla_accel_ros.types import Observation


class Instruction:
    """The last instruction, for the life of a process. text: empty before the first; `missing` then says
    why."""

    def __init__(self) -> None:
        self.text, self.missing = "", NO_INSTRUCTION

    def restore(self, previous: Restored, keep: bool) -> str:
        """Restore the previous process's instruction after its crash, or forget it (keep: False). Returns a
        sentence for the log if there was one."""
        text = previous.fields.get("instruction", "")
        if previous.problem:
            self.missing = f"no instruction since the restart, and the last is unknown ({previous.problem})"
        elif not text or not isinstance(text, str):
            return ""
        elif keep and not previous.clean:
            self.text = text
            return f"instruction: {text!r}, kept over a crash"
        else:
            self.missing = f"no instruction since the restart: say it again, the last was {text!r}"
        return self.missing

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the node's state file."""
        return {"instruction": self.text if len(self.text) < LARGEST // 8 else ""}


@dataclass(frozen=True)
class StreamState:
    """The state of one stream. problem: a sentence, or empty. values: for diagnostics, by name."""

    name: str
    problem: str
    values: Mapping[str, object]


class RobotInputs:
    """The inputs of a contract's robot. pace: of the chunks that are made from them; trained: what they are
    compared with.

    Attributes: `failed`, the sentence of an error that prevented a chunk, and `failed_for`, the part of it
    that changes all the time; `stands`, whether the trajectory node says why the robot stands; `unlike`, the
    sentences about inputs that are not like those in training; `errors`, their number; `newest_chunk_ns`, the
    newest chunk's stamp.
    """

    def __init__(
        self,
        contract: Contract,
        ingest: Ingest,
        instruction: Instruction | None = None,
        pace: ChunkPace | None = None,
        trained: TrainedInputs | None = None,
    ) -> None:
        self.ingest, self._contract = ingest, contract
        self.pace = pace or ChunkPace(contract.chunk.max_age_s)
        self.trained = trained or TrainedInputs(contract)
        self.instruction = instruction or Instruction()
        self.streams = {f"camera/{camera.name}": camera.name for camera in contract.cameras}
        self.streams |= {stream: stream for stream in (*contract.tf, "joint_states")}
        self._lost = dict.fromkeys((camera.name for camera in contract.cameras), 0)
        self._mismatched: set[str] = set()
        self.failed = self.failed_for = ""
        self.stands = False
        self.unlike: list[str] = []
        self.errors = 0
        self.newest_chunk_ns: int | None = None
        self.instruct(self.instruction.text)

    def clear(self) -> None:
        """Forget everything that carries a stamp: at activation and after a clock jump."""
        self.ingest.clear()
        self.pace.clear()

    def instruct(self, text: str, refusal: str = "") -> None:
        """Set the instruction; one of blanks is none. refusal: why it cannot be used; the one before is not
        meant any more either."""
        self.instruction.text = "" if refusal else text
        self.tell(self.instruction.text, refusal)

    def tell(self, text: str, missing: str) -> None:
        """Set what the policy is told, which is the instruction or a subtask of it. missing: a sentence if it
        is nothing."""
        usable = text if text.strip() else ""
        self.ingest.instruct(usable, missing or self.instruction.missing)
        if missing:
            self.ingest.waiting_for = missing

    def info(self, camera: str, height: int, width: int) -> str:
        """Take the size of a CameraInfo. Returns a sentence the first time that the images have another."""
        mismatch = "" if camera in self._mismatched else self.ingest.mismatch(camera, height, width)
        if mismatch:
            self._mismatched.add(camera)
        return mismatch

    def observe(self, now_ns: int) -> Observation | None:
        """The newest observation, from which a chunk is made now; None if there is no new one."""
        observation = self.ingest.observe(now_ns)
        if observation is not None:
            self.pace.observed(observation.stamp_ns, now_ns)
        return observation

    def made(self, chunk_ns: int, now_ns: int) -> None:
        """The chunk of the observation with this stamp is made."""
        self.newest_chunk_ns, self.failed, self.failed_for = chunk_ns, "", ""
        self.pace.made(chunk_ns, now_ns)

    def fail(self, sentence: str) -> None:
        """An error prevented a chunk."""
        self.errors += 1
        self.failed = sentence

    def compare_with(self, state: TrainedState) -> list[str]:
        """Compare with these joints in training from now on. Returns a sentence for each that did not move
        there."""
        self.trained = TrainedInputs(self._contract, state)
        return self.trained.still

    def compare(self) -> None:
        """Compare the newest inputs with training. It costs nothing that chunks wait for, and needs no
        instruction."""
        newest = self.ingest.newest_state()
        self.unlike = [] if newest is None else self.trained.joints(newest[0])
        for camera in self._contract.cameras:
            pixels = self.ingest.picture(camera.name)
            if pixels is not None:
                self.unlike += self.trained.picture(camera.name, camera.image, pixels)

    def is_slow(self, now_ns: int) -> bool:
        """Whether chunks are made more slowly than the contract needs."""
        made_per_s, needed_per_s = self.pace.per_s(now_ns)
        return made_per_s < needed_per_s

    def report(self, now_ns: int, busy: str = "") -> Inputs:
        """The present report. busy: a sentence if chunks are slow because other programs keep this host
        busy; the model is then not blamed."""
        made_per_s, needed_per_s = self.pace.per_s(now_ns)
        problems = {stream: self.ingest.problem(name, now_ns) for stream, name in self.streams.items()}
        return Inputs(
            told_ns=now_ns,
            stamps_ns=self.ingest.stamps_ns(),
            problems={stream: problem for stream, problem in problems.items() if problem},
            waiting_for=self.ingest.waiting_for or self.failed + self.failed_for,
            chunks_per_s=made_per_s,
            chunks_per_s_needed=0.0 if busy else needed_per_s,
            busy=busy,
        )

    def reasons(self, inputs: Inputs) -> dict[str, str]:
        """Why no chunk is made, for the log: what each reason is about -> its sentence. Empty while chunks
        are made."""
        waits, reasons = inputs.waiting_for, dict[str, str]()
        for stream, problem in inputs.problems.items():
            if not Late(stream, None, 0.0).named_in(inputs.waiting_for):
                reasons[stream] = problem
            elif problem != inputs.waiting_for:
                waits = f"{waits}; {problem}"
        return {unnumbered(waits): waits} | reasons if waits else {}

    def slow_streams(self, now_ns: int) -> list[str]:
        """A sentence for each stream that comes too slowly. One that does not come at all is a reason to
        stand."""
        monitors = [monitor for monitor in self.ingest.monitors.values() if monitor.rate_hz(now_ns)]
        return list(filter(None, (monitor.warning(now_ns) for monitor in monitors)))

    def stream_states(self, now_ns: int) -> list[StreamState]:
        """The state of each stream, with the frames lost since the last call."""
        return [self._state(name, now_ns) for name in self.ingest.monitors]

    def _state(self, name: str, now_ns: int) -> StreamState:
        monitor, problem = self.ingest.monitors[name], self.ingest.problem(name, now_ns)
        age_s = monitor.age_s(now_ns)
        values: dict[str, object] = {
            "rate [Hz]": monitor.rate_hz(now_ns),
            "expected [Hz]": monitor.expected_hz,
            "age [s]": "never seen" if age_s is None else age_s,
            "drops": monitor.drops,
            "refused": self.ingest.refused[name],
        }
        if name in self._lost:
            lost = self.ingest.lost(name)
            newly, self._lost[name] = lost - self._lost[name], lost
            values["lost"] = lost
            if newly and not problem:
                problem = (
                    f"{newly} frames were overwritten before they were used, or found no free slot: give the "
                    "camera's ring more slots"
                )
        if name in self.ingest.history.past:
            values["observations without history"] = self.ingest.history.incomplete
        if name in self.ingest.rings.cameras:
            values["memory of the ring"] = self.ingest.rings.page_lock(name).state
        return StreamState(name, problem, values)
