"""The lifecycle node `inference` of a robot without a GPU: its observations go to a fleet, chunks come back.

For all other nodes it is the inference node: it subscribes to the cameras, the joints, `instruction` and
`motion`, and publishes `inputs`, `action_chunk` and the chunk slot, through the same modules.
fleet/robot/client.py decides when it requests a chunk and which answer it takes. Chunks have the robot's own
stamps, so the trajectory node ages them as usual, and an arm whose scheduler is gone comes to rest at the end
of its last chunk. Chunks are numbered here, by task and round, because each replica numbers its own; these
numbers also determine their noise. Questions go to the fleet too (fleet/robot/questions.py). `session` and
`observed` say what chunks and answers were made from, by the scheduler's and this robot's knowledge, so that
a bag can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import cv2
from diagnostic_msgs.msg import DiagnosticStatus
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import LanguageOutput, Motion, Observed
from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.pace import ChunkPace
from vla_accel_ros.engine.session import JPEG, JPEG_BY, Session
from vla_accel_ros.fleet.protocol import ChunkAnswer, EncodedObservation, RobotDescription, TextAnswer
from vla_accel_ros.fleet.robot.client import ClientSettings, FleetClient
from vla_accel_ros.fleet.robot.observing import EncodedIngest
from vla_accel_ros.fleet.robot.provenance import Provenance
from vla_accel_ros.fleet.robot.questions import Questions
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import ERROR, OK, Reporter, status
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.fleet_inference.link import FleetLink
from vla_accel_ros.nodes.fleet_inference.reports import of_fleet
from vla_accel_ros.nodes.inference.chunk_output import ChunkOutput
from vla_accel_ros.nodes.inference.inputs import InputsTopic, of_observations
from vla_accel_ros.nodes.inference.instruction import Instruction
from vla_accel_ros.nodes.inference.streams import Streams
from vla_accel_ros.nodes.inference.trained import TrainedReport
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.fleet import LOCAL
from vla_accel_ros.nodes.params.inference import INFERENCE
from vla_accel_ros.nodes.running.environment import demo_contract, lacks_profile
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.throttled import AGAIN_S, Throttled
from vla_accel_ros.sensing.arrivals import IMAGE_HINT, PROFILED_HINT
from vla_accel_ros.types import Chunk

STEP_S = 0.01
"""How often to check whether a request is due."""
QUESTION = "question"
"""A placeholder for the instruction if only questions are asked; each question replaces it by its words."""


class FleetInferenceNode(ManagedNode):
    """The node inference, with a fleet; see the module docstring and nodes/params/fleet.py."""

    def __init__(self) -> None:
        super().__init__("inference", INFERENCE)
        self._client: FleetClient | None = None
        self._instruction = Instruction(self)
        self._unanswered, self._unreadable = Throttled(self, AGAIN_S), Throttled(self, AGAIN_S)
        self._reporter = Reporter(self, self._statuses)

    def configure(self) -> None:
        if value(self, "engine") == LOCAL:
            self.get_logger().info("engine is local, but this executable has none: a fleet makes the chunks")
        path = Path(value(self, "contract") or demo_contract())
        contract = self._contract = Contract.load(path)
        self._reporter.hardware_id = contract.robot
        jpeg_quality = value(self, "fleet_jpeg_quality") if value(self, "fleet_images") == "jpeg" else None
        hint = IMAGE_HINT if lacks_profile() else PROFILED_HINT
        self._ingest = EncodedIngest(contract, hint, jpeg_quality)
        self._instruction.restore(value(self, "after_restart") == "keep")
        self._newest_chunk_ns: int | None = None
        self._pace = ChunkPace(contract.chunk.max_age_s)
        description = self._description(contract, path)
        client = FleetClient(description.engine, description.robot, self._settings(contract))
        self._questions = Questions(description.engine, description.robot, value(self, "fleet_answer_s"))
        own: dict[str, object] = (
            {} if jpeg_quality is None else {JPEG: jpeg_quality, JPEG_BY: cv2.__version__}
        )
        topics = {camera.name: self.resolve_topic_name(camera.topic) for camera in contract.cameras}
        self._provenance = Provenance(topics, own)
        self._chunks = ChunkOutput(self, contract)
        self._observed = self.output(Observed, "observed", qos.REPORT)
        self._session = self.output(SessionMessage, "session", qos.ALL_LATCHED)
        self._texts = self.output(LanguageOutput, "language_output", qos.REPORT)
        self._inputs = InputsTopic(self, contract, self._ingest, self._pace)
        self._streams = Streams(self, contract, self._ingest)
        self._trained = TrainedReport(self, contract, self._ingest)
        self._link = FleetLink(
            self, contract, client, description, self._on_chunk, self._on_text, self._on_session
        )
        self._client = client
        self._tell_instruction()
        self.listen_to_instructions(self._on_instruction)
        self.listen(String, "question", self._on_question, qos.REPORT)
        self.serve(Trigger, "~/cancel_answers", self._on_cancel)
        self.listen(Motion, "motion", self._on_motion, qos.LATCHED)
        self.every(STEP_S, self._step)
        self.every(1.0, self._report)

    def activate(self) -> None:
        assert self._client is not None
        self._ingest.clear()
        self._pace.clear()
        self._client.begin(self.now_ns())
        self._chunks.open()

    def deactivate(self) -> None:
        for text, why in self._questions.close("the node was deactivated before the answer came"):
            self._refuse(text, why)
        self._chunks.close()

    def release(self) -> None:
        self._client = None

    def finish(self) -> None:
        self._instruction.finish()

    def clock_jumped(self) -> None:
        if self._client is not None:
            self._ingest.clear()
            self._pace.clear()
            self._client.begin(self.now_ns())

    def _settings(self, contract: Contract) -> ClientSettings:
        return ClientSettings(
            contract.chunk.max_age_s,
            contract.chunk.step_dt_s,
            value(self, "fleet_ask_at_s"),
            value(self, "fleet_within_s"),
            value(self, "fleet_extend_actions"),
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
        assert self._client is not None
        client, now_ns = self._client, self.now_ns()
        step = client.step(now_ns)
        if step.announce:
            self._link.announce()
        self._ingest.waiting_for = ""
        seen = self._observe(client) if step.observe else None
        self._ask(seen)
        self._inputs.failed, self._inputs.detail = client.waiting_for(now_ns)

    def _observe(self, client: FleetClient) -> EncodedObservation | None:
        """Take an observation, and request a chunk with it; None if there is no observation."""
        seen = self._ingest.encoded(self.now_ns())
        if seen is None:
            client.not_observed(self._ingest.waiting_for)
            return None
        now_ns = self.now_ns()
        ask = client.ask(seen.stamp_ns, now_ns, seen.size)
        if ask.attempt == 1:  # the pace is that of rounds
            self._pace.observed(seen.stamp_ns, now_ns)
        self._link.send(ask, seen)
        self._provenance.sent(seen)
        return seen

    def _ask(self, seen: EncodedObservation | None) -> None:
        """Send the waiting questions, with the chunk's observation or a new one; refuse those that are
        late."""
        if self._questions.unsent:
            seen = seen or self._ingest.encoded(self.now_ns(), QUESTION)
            for question in () if seen is None else self._questions.send(seen, self.now_ns()):
                self._link.ask(question)
                self._provenance.sent(question.observation)
        for text, why in self._questions.late(self.now_ns(), self._ingest.waiting_for):
            self._refuse(text, why)

    def _on_text(self, answer: TextAnswer) -> None:
        if not self._questions.answered(answer):
            return
        if answer.refused:
            self._refuse(answer.prompt, answer.text)
            return
        number = answer.round.number
        self._tell_observed(answer.stamp_ns, answer.prompt, answer.replica, number)
        self._texts.publish(fleet_convert.robot_text_to_message(answer, number))

    def _on_session(self, session: Session) -> None:
        told = self._provenance.told(session)
        self._session.publish(convert.session_to_message(told, self.now_ns()))

    def _tell_observed(self, stamp_ns: int, words: str, replica: str, version: int) -> None:
        """Publish what a chunk or an answer was made from, before it, if that is known."""
        seen = self._provenance.of(stamp_ns, words, replica)
        if seen is not None:
            self._observed.publish(fleet_convert.seen_to_message(seen, version))

    def _on_chunk(self, chunk: Chunk, answer: ChunkAnswer) -> None:
        number, served_s = answer.round.request_id, answer.served_s
        chunk = replace(chunk, request_id=number, kv_version=number)
        replica = f"{answer.scheduler}/{answer.replica}"
        self._tell_observed(chunk.stamp_ns, self._ingest.instruction, replica, number)
        self._newest_chunk_ns = chunk.stamp_ns
        self._pace.made(chunk.stamp_ns, self.now_ns())
        self._chunks.send(chunk, served_s, in_ros_units=True)

    def _on_instruction(self, message: String) -> None:
        self._instruction.told(message.data)
        self._tell_instruction()
        self.get_logger().info(f"instruction: {message.data!r}")

    def _tell_instruction(self) -> None:
        assert self._client is not None
        text = self._instruction.text if self._instruction.text.strip() else ""
        self._ingest.instruct(text, self._instruction.missing)
        self._client.instruct(text, self.now_ns(), self._instruction.missing)

    def _on_motion(self, message: Motion) -> None:
        if self._client is None:
            return
        try:
            told = convert.execution_from_message(message)
        except ValueError as refusal:
            self._unreadable.error(f"motion refused: {refusal}")
            return
        self._inputs.stands = bool(message.reasons)
        self._client.execution.told(told.state, told.mode, told.lead_s, told.beginning, self.now_ns())

    def _on_question(self, message: String) -> None:
        assert self._client is not None
        try:
            if not self.active:
                raise ValueError("the node is not active: activate it first")
            self._questions.asked(message.data, self._client.admission, self.now_ns())
        except ValueError as error:
            self._refuse(message.data, str(error))

    def _refuse(self, question: str, why: str) -> None:
        self._unanswered.warning(f"question: {why}")
        self._texts.publish(convert.refusal_to_message(question, why, self.now_ns()))

    def _on_cancel(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        there = 0 if self._client is None else len(self._questions.close())
        response.success, response.message = True, f"cancelled: {there} answers and waiting questions"
        return response

    def _report(self) -> None:
        self._streams.warn(self.now_ns())
        self._inputs.warn()
        if self.active:
            self._trained.look()

    def _statuses(self) -> Sequence[DiagnosticStatus]:
        if self._client is None:
            return [status("inference", ERROR if self.trouble else OK, self.trouble or "not configured")]
        if not self.active:
            return [status("inference", OK, "not active")]
        now_ns = self.now_ns()
        return [
            of_observations(
                self._inputs.now(), self._ingest.instruction, self._newest_chunk_ns, 0, self._inputs.busy
            ),
            of_fleet(self._client, self._link, len(self._questions), now_ns),
            *self._streams.statuses(now_ns),
            self._trained.status(),
        ]


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros fleet_inference`."""
    return run(FleetInferenceNode, args)
