"""The lifecycle node `inference` as all other nodes know it, whoever computes its chunks.

It subscribes to the cameras, the joints, `instruction`, `question` and `motion`, and publishes `inputs`,
`action_chunk` (and the chunk slot), `observed` and `language_output`. What it knows and says of its inputs is
sensing/inputs.py's. Its own thread, which otherwise only receives messages, publishes `inputs` at a fixed
rate. Watchdogs of cameras use that topic, not chunks. The trajectory node logs why the robot stands, from it
too; while none does, the log here says what keeps chunks from being made, or that a model is too slow. The
last instruction is in the node's state file, for the process after a crash. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import suppress

from diagnostic_msgs.msg import DiagnosticStatus
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import Inputs as InputsMessage
from vla_accel_msgs.msg import LanguageOutput, Motion, Observed
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.guidance import Execution
from vla_accel_ros.control.state_file import StateFile
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.inference.chunk_output import ChunkOutput
from vla_accel_ros.nodes.inference.steering import Steering
from vla_accel_ros.nodes.inference.streams import Streams
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.inference import INFERENCE
from vla_accel_ros.nodes.running.environment import lacks_profile
from vla_accel_ros.nodes.running.host import Host
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.throttled import AGAIN_S, Reasons, Throttled
from vla_accel_ros.sensing.arrivals import IMAGE_HINT, PROFILED_HINT, Inputs
from vla_accel_ros.sensing.inputs import Instruction, RobotInputs
from vla_accel_ros.types import Chunk

PERIOD_S = 0.05
"""Of reports on `inputs`."""
_WRITTEN_S = 1.0


class ObservingNode(ManagedNode):
    """The node inference; a subclass calls `observe_robot` in configure, and overrides the hooks below."""

    def __init__(self) -> None:
        super().__init__("inference", INFERENCE)
        self.instruction = Instruction()
        self._state = StateFile(self.get_fully_qualified_name(), self.context.get_domain_id())
        self._restored = False
        self._unanswered, self._unreadable = Throttled(self, AGAIN_S), Throttled(self, AGAIN_S)
        self._unlike, self._slow = Throttled(self, AGAIN_S), Throttled(self, AGAIN_S)
        self._reasons = Reasons(self)

    def check_words(self, text: str) -> None:
        """Raises ValueError for words that the policy cannot take."""

    def instructed(self) -> None:
        """There is another instruction."""

    def executed(self, execution: Execution) -> None:
        """Take the trajectory node's report."""

    def ask(self, question: str) -> None:
        """Answer a question beside acting. Raises ValueError if it is refused."""

    def cancel_answers(self) -> int:
        """Cancel all answers and waiting questions; returns how many there were."""
        return 0

    def joints_came(self) -> None:
        """There is a newer state of joints."""

    def chunk_statuses(self) -> Sequence[DiagnosticStatus]:
        """Lines of diagnostics about who computes the chunks."""
        return []

    @property
    def image_hint(self) -> str:
        """What to do about a camera that comes too slowly."""
        return IMAGE_HINT if lacks_profile() else PROFILED_HINT

    def restore_instruction(self) -> None:
        """Restore or forget the previous process's instruction; later calls do nothing."""
        if self._restored:
            return
        self._restored = True
        keep = value(self, "after_restart") == "keep"
        if warning := self.instruction.restore(self._state.restore(), keep):
            self.get_logger().warning(warning)
        self._keep_instruction()

    def observe_robot(self, contract: Contract, inputs: RobotInputs, answers: bool = False) -> None:
        """Open every topic that does not depend on who computes the chunks. answers: whether the model can be
        asked for subtasks."""
        self.inputs, self._host = inputs, Host()
        self.steering = Steering(self, answers)
        self.reporter.hardware_id = contract.robot
        for warning in inputs.trained.still:
            self.get_logger().warning(warning)
        self.chunks = ChunkOutput(self, contract)
        self.observed = self.output(Observed, "observed", qos.REPORT)
        self.texts = self.output(LanguageOutput, "language_output", qos.REPORT)
        self._inputs_topic = self.output(InputsMessage, "inputs", qos.REPORT)
        self._streams = Streams(self, contract, inputs, self.joints_came)
        self.listen_to_instructions(self._on_instruction)
        self.listen(String, "question", self._on_question, qos.REPORT)
        self.serve(Trigger, "~/cancel_answers", self._on_cancel)
        self.listen(Motion, "motion", self._on_motion, qos.LATCHED)
        # Often enough that the delay of the message itself never reaches a limit.
        self.every(min(PERIOD_S, min(contract.max_ages_s.values()) / 4), self._publish_inputs)
        self.every(1.0, self._warn)

    def activate(self) -> None:
        self._told_ready = False
        self.inputs.clear()
        self.steering.begin()
        self.chunks.open()

    def deactivate(self) -> None:
        self.chunks.close()

    def release(self) -> None:
        for name in ("inputs", "_streams"):  # they hold images: the next configuration must find the memory
            self.__dict__.pop(name, None)

    def finish(self) -> None:
        if self._restored:
            with suppress(TimeoutError):
                self._state.finish(self.instruction.fields).result(_WRITTEN_S)

    def clock_jumped(self) -> None:
        self.inputs.clear()
        self.restart()

    def restart(self) -> None:
        """Continue nothing that was begun before."""

    def log_pace(self) -> None:
        """Log, at activation, the pace that the warm-up suggests, and the one that the contract needs."""
        inputs, log = self._report(), self.get_logger()
        if inputs.busy or inputs.slow:
            log.warning(inputs.busy or inputs.slow)
        else:
            per_s, needed_per_s = inputs.chunks_per_s, inputs.chunks_per_s_needed
            log.info(f"the model makes {per_s:.1f} chunks/s; this contract needs {needed_per_s:.1f}")

    def send(self, chunk: Chunk, inference_s: float, in_ros_units: bool = False) -> None:
        """Send a chunk to the trajectory node; see ChunkOutput."""
        self.inputs.made(chunk.stamp_ns, self.now_ns())
        self.chunks.send(chunk, inference_s, in_ros_units)

    def refuse(self, question: str, why: str) -> None:
        """Answer a question with why there is no answer."""
        self._unanswered.warning(f"question: {why}")
        self.texts.publish(convert.refusal_to_message(question, why, self.now_ns()))

    def _on_instruction(self, message: String) -> None:
        previous = self.instruction.text
        try:
            self.check_words(message.data)
        except ValueError as error:
            refusal = f"the instruction is refused: {error}"
            self.inputs.instruct("", refusal)
            self.get_logger().error(refusal)
        else:
            self.inputs.instruct(message.data)
            self.get_logger().info(f"instruction: {message.data!r}")
        self.steering.instruct(self.instruction.text)
        if self.instruction.text != previous:
            self._keep_instruction()
        self.instructed()

    def _keep_instruction(self) -> None:
        self._state.keep(self.instruction.fields).add_done_callback(self._instruction_kept)

    def _instruction_kept(self, problem: Future[str]) -> None:
        if problem.result():
            self.get_logger().warning(f"a restart would forget the instruction: {problem.result()}")

    def _on_question(self, message: String) -> None:
        try:
            if not self.active:
                raise ValueError("the node is not active: activate it first")
            self.ask(message.data)
        except ValueError as error:
            self.refuse(message.data, str(error))

    def _on_cancel(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        count = self.cancel_answers() if self.configured else 0
        response.success, response.message = True, f"cancelled: {count} answers and waiting questions"
        return response

    def _on_motion(self, message: Motion) -> None:
        if not self.configured:
            return
        try:
            execution = convert.execution_from_message(message)
        except ValueError as refusal:
            self._unreadable.error(f"motion refused: {refusal}")
            return
        self.inputs.stands = bool(message.reasons)
        self.executed(execution)

    def _report(self) -> Inputs:
        now_ns = self.now_ns()
        return self.inputs.report(now_ns, self._host.busy if self.inputs.is_slow(now_ns) else "")

    def _publish_inputs(self) -> None:
        self._inputs_topic.publish(convert.inputs_to_message(self._report(), tuple(self.inputs.streams)))

    def _warn(self) -> None:
        """Log streams that are slow, inputs that are not like those in training and, unless the trajectory
        node says it, what chunks wait for and a model that is too slow."""
        self._streams.warn(self.now_ns())
        self.inputs.compare()
        if self.inputs.unlike:
            self._unlike.warning("not as in training: " + "\n".join(self.inputs.unlike))
        inputs = self._report()
        self._tell_ready(inputs)
        if inputs.busy:
            self._slow.warning(inputs.busy)
        if self.inputs.stands and self.count_publishers("motion"):
            return
        self._reasons.log("no chunks are made", self.inputs.reasons(inputs))
        if inputs.slow:
            self._slow.warning(inputs.slow)

    def _tell_ready(self, inputs: Inputs) -> None:
        """Log once in an activation that only words are absent, and how to give them."""
        present = inputs.stamps_ns.keys() == self.inputs.streams.keys()
        if self._told_ready or not present or not self.count_publishers("motion"):
            return
        self._told_ready = True
        if not self.instruction.text:
            namespace = self.get_namespace().rstrip("/")
            option = f" --namespace {namespace}" * bool(namespace)
            self.get_logger().info(f'ready: say what to do with vla say{option} "..."')

    def statuses(self) -> Sequence[DiagnosticStatus]:
        streams = self._streams.statuses(self.now_ns())
        host = status("host", WARN if self._host.busy else OK, self._host.busy or "not busy", self._host.load)
        return [self._chunks_status(), *self.chunk_statuses(), *streams, self._training_status(), host]

    def _chunks_status(self) -> DiagnosticStatus:
        """What chunks wait for, the age of the newest, and whether they are made fast enough."""
        report, chunk_ns = self._report(), self.inputs.newest_chunk_ns
        problem = report.waiting_for or report.busy or report.slow
        values = {
            "chunk age [s]": "none yet" if chunk_ns is None else (report.told_ns - chunk_ns) * 1e-9,
            "chunks made [1/s]": report.chunks_per_s,
            "chunks needed [1/s]": report.chunks_per_s_needed,
            "instruction": self.inputs.ingest.instruction,
            "errors": self.inputs.errors,
        }
        return status("inference", WARN if problem else OK, problem or "running", values)

    def _training_status(self) -> DiagnosticStatus:
        unlike = self.inputs.unlike
        message = "; ".join(unlike) or "inputs are as in training, as far as that is known"
        return status("training", WARN if unlike else OK, message, {"unlike": len(unlike)})
