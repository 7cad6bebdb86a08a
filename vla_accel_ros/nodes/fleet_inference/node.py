"""The lifecycle node `inference` of a robot without a GPU: its observations go to a fleet, chunks come back.

For all other nodes it is the inference node (nodes/inference/observing.py). fleet/robot/client.py decides
when it requests a chunk and which answer it takes. Chunks have the robot's own stamps, so the trajectory node
ages them as usual, and an arm whose scheduler is gone comes to rest at the end of its last chunk. Chunks are
numbered here, by task and round, because each replica numbers its own; these numbers also determine their
noise. Questions go to the fleet too (fleet/robot/questions.py). `session` and `observed` say what chunks and
answers were made from, by the scheduler's and this robot's knowledge, so that a bag can be replayed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import cv2
from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.guidance import Execution
from vla_accel_ros.engine.session import JPEG, JPEG_BY, TRAINED, Session
from vla_accel_ros.fleet.protocol import ChunkAnswer, EncodedObservation, RobotDescription, TextAnswer
from vla_accel_ros.fleet.robot.client import ClientSettings, FleetClient
from vla_accel_ros.fleet.robot.observing import EncodedIngest, Provenance
from vla_accel_ros.fleet.robot.questions import Questions
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.declare import record, value
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.fleet_inference.link import FleetLink
from vla_accel_ros.nodes.inference.observing import ObservingNode
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.fleet import LOCAL
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.sensing.inputs import RobotInputs
from vla_accel_ros.sensing.trained import TrainedState
from vla_accel_ros.types import Chunk

STEP_S = 0.01
"""How often to check whether a request is due."""
QUESTION = "question"
"""A placeholder for the instruction if only questions are asked; each question replaces it by its words."""


class FleetInferenceNode(ObservingNode):
    """The node inference, with a fleet; see the module docstring and nodes/params/fleet.py."""

    def configure(self) -> None:
        if value(self, "engine") == LOCAL:
            self.get_logger().info("engine is local, but this executable has none: a fleet makes the chunks")
        path = Path(value(self, "contract") or demo_contract())
        contract = Contract.load(path)
        jpeg_quality = value(self, "fleet_jpeg_quality") if value(self, "fleet_images") == "jpeg" else None
        self._ingest = EncodedIngest(contract, self.image_hint, jpeg_quality)
        description = self._description(contract, path)
        self._client = FleetClient(description.engine, description.robot, self._settings(contract))
        self._questions = Questions(description.engine, description.robot, value(self, "fleet_answer_s"))
        encoding: dict[str, object] = (
            {} if jpeg_quality is None else {JPEG: jpeg_quality, JPEG_BY: cv2.__version__}
        )
        topics = {picture.name: self.resolve_topic_name(picture.topic) for picture in contract.pictures}
        self._provenance = Provenance(topics, encoding)
        self._trained: object = None
        self._session = self.output(SessionMessage, "session", qos.ALL_LATCHED)
        self._link = FleetLink(
            self, contract, self._client, description, self._on_chunk, self._on_text, self._on_session
        )
        self.restore_instruction()
        self.observe_robot(contract, RobotInputs(contract, self._ingest, self.instruction))
        self.instructed()
        self.every(STEP_S, self._step)

    def activate(self) -> None:
        super().activate()
        self._client.begin(self.now_ns())

    def deactivate(self) -> None:
        for text, reason in self._questions.close("the node was deactivated before the answer came"):
            self.refuse(text, reason)
        super().deactivate()

    def restart(self) -> None:
        self._client.begin(self.now_ns())

    def instructed(self) -> None:
        self._client.instruct(self._ingest.instruction, self.now_ns(), self.instruction.missing)

    def executed(self, execution: Execution) -> None:
        self._client.execution.told(
            execution.state, execution.mode, execution.lead_s, execution.beginning, self.now_ns()
        )

    def ask(self, question: str) -> None:
        self._questions.asked(question, self._client.admission, self.now_ns())

    def cancel_answers(self) -> int:
        return len(self._questions.close())

    def chunk_statuses(self) -> Sequence[DiagnosticStatus]:
        return [of_fleet(self._client, self._link, len(self._questions), self.now_ns())]

    def _settings(self, contract: Contract) -> ClientSettings:
        chunk = contract.chunk
        return record(
            self, ClientSettings, prefix="fleet_", max_age_s=chunk.max_age_s, step_dt_s=chunk.step_dt_s
        )

    def _description(self, contract: Contract, path: Path) -> RobotDescription:
        """This robot's description; each configuration has another engine id."""
        ages_s = contract.chunk.max_age_s, value(self, "fleet_ask_at_s")
        needed = 1.0 / max(ages_s[0] - ages_s[1], contract.chunk.step_dt_s)
        return RobotDescription(
            engine=uuid4().hex,
            robot=self.get_namespace(),
            contract=path.read_text(),
            urdf="" if contract.urdf is None else Path(contract.urdf).read_text(),
            statistics=value(self, "statistics"),
            horizon=value(self, "horizon") if self.has_parameter("horizon") else "",
            priority=value(self, "fleet_priority"),
            chunks_per_s=value(self, "fleet_chunks_per_s") or needed,
        )

    def _step(self) -> None:
        client, now_ns = self._client, self.now_ns()
        step = client.step(now_ns)
        if step.announce:
            self._link.announce()
        self._ingest.waiting_for = ""
        observation = self._observe() if step.observe else None
        self._send_questions(observation)
        self.inputs.failed, self.inputs.failed_for = client.waiting_for(now_ns)

    def _observe(self) -> EncodedObservation | None:
        """Take an observation, and request a chunk with it; None if there is no observation."""
        observation = self._ingest.encoded(self.now_ns())
        if observation is None:
            self._client.not_observed(self._ingest.waiting_for)
            return None
        now_ns = self.now_ns()
        ask = self._client.ask(observation.stamp_ns, now_ns, observation.size)
        if ask.attempt == 1:  # the pace is that of rounds
            self.inputs.pace.observed(observation.stamp_ns, now_ns)
        self._link.send(ask, observation)
        self._provenance.sent(observation)
        return observation

    def _send_questions(self, observation: EncodedObservation | None) -> None:
        """Send the waiting questions, with the chunk's observation or a new one; refuse those that are
        late."""
        if self._questions.unsent:
            observation = observation or self._ingest.encoded(self.now_ns(), QUESTION)
            unsent = () if observation is None else self._questions.send(observation, self.now_ns())
            for question in unsent:
                self._link.ask(question)
                self._provenance.sent(question.observation)
        for text, reason in self._questions.late(self.now_ns(), self._ingest.waiting_for):
            self.refuse(text, reason)

    def _on_text(self, answer: TextAnswer) -> None:
        if not self._questions.answered(answer):
            return
        if answer.refused:
            self.refuse(answer.prompt, answer.text)
            return
        number = answer.round.number
        self._publish_observed(answer.stamp_ns, answer.prompt, answer.replica, number)
        self.texts.publish(fleet_convert.robot_text_to_message(answer, number))

    def _on_session(self, session: Session) -> None:
        session = self._provenance.told(session)
        self._session.publish(convert.session_to_message(session, self.now_ns()))
        trained = json.loads(session.settings).get(TRAINED)
        if trained is not None and trained != self._trained:
            for warning in self.inputs.compare_with(TrainedState.of_lists(trained)):
                self.get_logger().warning(warning)
            self._trained = trained

    def _publish_observed(self, stamp_ns: int, words: str, replica: str, version: int) -> None:
        """Publish what a chunk or an answer was made from, before it, if that is known."""
        observation = self._provenance.of(stamp_ns, words, replica)
        if observation is not None:
            self.observed.publish(fleet_convert.seen_to_message(observation, version))

    def _on_chunk(self, chunk: Chunk, answer: ChunkAnswer) -> None:
        number, replica = answer.round.request_id, f"{answer.scheduler}/{answer.replica}"
        self._publish_observed(chunk.stamp_ns, self._ingest.instruction, replica, number)
        chunk = replace(chunk, request_id=number, kv_version=number)
        self.send(chunk, answer.served_s, in_ros_units=True)


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros fleet_inference`."""
    return run(FleetInferenceNode, args)


def of_fleet(client: FleetClient, link: FleetLink, questions: int, now_ns: int) -> DiagnosticStatus:
    """The present round, counts of the earlier ones, and why it waits. questions: number of unanswered
    ones."""
    admission, observed_ns = client.admission, client.observed_ns
    p50_s, p99_s = client.latency_s(0.5), client.latency_s(0.99)
    values: dict[str, object] = {
        "state": client.state,
        "scheduler": "none" if admission is None else admission.scheduler,
        "task": client.round.task,
        "round": client.round.number,
        "attempt": client.attempt,
        "chunks": client.counts["rounds"],
        "requests": client.counts["attempts"],
        "lost": client.counts["lost"],
        "late": client.counts["late"],
        "useless when they came": client.counts["stale"],
        "refused by the scheduler": client.counts["refused"],
        "observed anew when called": client.counts["calls"],
        "answers for nobody": client.counts["foreign"],
        "questions open": questions,
        "messages refused": link.refused.total(),
        "stalled [s]": client.execution.stalled_s,
        "observation age [s]": "nothing asked" if observed_ns is None else (now_ns - observed_ns) * 1e-9,
        "answer p50 [s]": "none yet" if p50_s is None else p50_s,
        "answer p99 [s]": "none yet" if p99_s is None else p99_s,
        "queued, last [s]": link.queued_s,
        "replica, last": link.replica,
    }
    problem = "".join(client.waiting_for(now_ns))
    if not problem and admission is not None and admission.reason:
        problem = f"served, but {admission.reason}"
    return status("fleet", WARN if problem else OK, problem or "chunks come from the fleet", values)
