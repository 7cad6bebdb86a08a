"""The lifecycle node that runs the model: images, joints, an instruction and questions in, action chunks and
answers out.

Images arrive by the transport that the contract gives each camera (nodes/inference/streams.py). Vision,
actions and text stream through one engine at their own rates (engine/streaming/streaming.py); this node opens
topics, passes inputs on, and reports. It publishes `session` and `observed`, from which every chunk can be
computed again; LoopStats once a second for vision, action and language; `inputs`, the state of every stream
and the pace of chunks (inputs.py). /diagnostics has the rate, age and drops of every stream, times and misses
of vision, action and language, what is given up under overload, and what chunks wait for. Configure loads the
model, compares it with the contract and warms up. A changed instruction takes effect with the next frame.
Each chunk is guided to continue the previous one while the trajectory node reports, on `motion`, that it runs
in mode `rtc`. A `question` is answered beside acting, several at once, in the time that is left;
`~/cancel_answers` cancels them.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import LanguageOutput, LoopStats, Motion, Observed
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.pace import ChunkPace
from vla_accel_ros.control.horizon import Horizons
from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.streaming.ports import Ports, Text
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.models.device import device_fault
from vla_accel_ros.models.policies import FLOW
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import ERROR, OK, Reporter, status
from vla_accel_ros.nodes.inference.chunk_output import ChunkOutput
from vla_accel_ros.nodes.inference.inputs import InputsTopic, of_observations
from vla_accel_ros.nodes.inference.instruction import Instruction
from vla_accel_ros.nodes.inference.reports import (
    HorizonReport,
    SessionTopic,
    of_chunking,
    of_loops,
    of_overload,
    of_partition,
)
from vla_accel_ros.nodes.inference.setup import (
    chosen,
    guiding,
    load_engine,
    paces,
    session,
    trained_images,
    trained_state,
)
from vla_accel_ros.nodes.inference.streams import Streams
from vla_accel_ros.nodes.inference.trained import TrainedReport
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.inference import INFERENCE
from vla_accel_ros.nodes.running.environment import demo_contract, lacks_profile
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.running.shutdown import fatal
from vla_accel_ros.nodes.throttled import AGAIN_S, Throttled
from vla_accel_ros.sensing.arrivals import IMAGE_HINT, PROFILED_HINT
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.types import Chunk, Observation


class InferenceNode(ManagedNode):
    """The node inference; see the module docstring and nodes/params/inference.py."""

    def __init__(self) -> None:
        super().__init__("inference", INFERENCE)
        self._contract: Contract | None = None
        self._stream: Streaming | None = None
        self._instruction = Instruction(self)
        self._conflict, self._failure = Throttled(self, AGAIN_S), Throttled(self, AGAIN_S)
        self._unanswered, self._unreadable = Throttled(self, AGAIN_S), Throttled(self, AGAIN_S)
        self._reporter = Reporter(self, self._statuses)

    def configure(self) -> None:
        contract = Contract.load(value(self, "contract") or demo_contract())
        self._reporter.hardware_id = contract.robot
        if value(self, "engine") != "local":
            raise ValueError("engine is fleet: start the executable fleet_inference, which needs no GPU")
        load = chosen(self, plans_with_rates=True)
        # an invalid horizon is refused before a model is loaded
        self._horizons = Horizons(value(self, "horizon"))
        engine, warm_s = load_engine(self, load, contract)
        image_hint = IMAGE_HINT if lacks_profile() else PROFILED_HINT
        self._policy, self._partitioned = engine.policy, engine.runner.partitioned
        self._ingest = Ingest(contract, image_hint, page_lock=engine.policy.device.type == "cuda")
        self._trained = TrainedReport(
            self, contract, self._ingest, trained_state(engine.policy), trained_images(load.model)
        )
        self._instruction.restore(value(self, "after_restart") == "keep")
        self._ingest.instruct(self._instruction.text, self._instruction.missing)
        self._newest_chunk_ns: int | None = None
        self._errors = 0
        pace = paces(self)
        self._pace = ChunkPace(contract.chunk.max_age_s, min(pace["vision"].rate_hz, pace["action"].rate_hz))
        self._pace.expect(warm_s, warm_s + 1.0 / min(c.rate_hz for c in contract.cameras))
        self._horizons.check(engine.config.steps if engine.policy.acts == FLOW else 0)
        self._executed = HorizonReport(self._horizons.spec)
        ports = Ports(
            observe=self._observe,
            observed=self._ingest.observed,
            newest_state=self._ingest.newest_state,
            on_chunk=self._on_chunk,
            on_text=self._on_text,
            on_error=self._on_error,
            on_prefix=self._on_prefix,
            frames=self._ingest.sets,
            limit=self._limit,
        )
        self._guiding = guiding(self, engine, contract)
        self._stream = Streaming(
            engine,
            ports,
            pace["vision"],
            pace["action"],
            pace.get("language"),
            engine.config.answer_tokens,
            self._guiding.chunking if engine.policy.acts == FLOW else None,
        )
        self._chunks = ChunkOutput(self, contract)
        self._observed = self.output(Observed, "observed", qos.REPORT)
        self._texts = self.output(LanguageOutput, "language_output", qos.REPORT)
        self._stats = self.output(LoopStats, "loop_stats", qos.REPORT)
        self._inputs = InputsTopic(self, contract, self._ingest, self._pace)
        self._streams = Streams(self, contract, self._ingest, self._stream.joints_came)
        self.listen_to_instructions(self._on_instruction)
        self.listen(String, "question", self._on_question, qos.REPORT)
        self.serve(Trigger, "~/cancel_answers", self._on_cancel)
        self.listen(Motion, "motion", self._on_motion, qos.LATCHED)
        self.every(1.0, self._report)
        self._session = SessionTopic(self, session(self, engine, load, contract))
        self._contract = contract

    def activate(self) -> None:
        assert self._stream is not None
        self._ingest.clear()
        self._pace.clear()
        self._inputs.promise()
        self._guiding.restart()
        self._horizons.forget()
        self._chunks.open()
        self._stream.start()

    def deactivate(self) -> None:
        assert self._stream is not None
        self._stream.stop()
        self._chunks.close()

    def release(self) -> None:
        self._contract = self._stream = None
        # They hold the model and images: the next configuration must find their memory free.
        for name in ("_policy", "_partitioned", "_guiding", "_ingest", "_streams", "_inputs", "_trained"):
            self.__dict__.pop(name, None)

    def finish(self) -> None:
        self._instruction.finish()

    def hopeless(self, error: Exception) -> str:
        return "the GPU refuses every call of this process" if device_fault(error) else ""

    def clock_jumped(self) -> None:
        if self._contract is not None:
            self._ingest.clear()
            self._pace.clear()
            self._restart()

    def _restart(self) -> None:
        """Continue nothing that was begun before."""
        assert self._stream is not None
        self._guiding.restart()
        self._horizons.forget()
        self._stream.forget()

    def _on_instruction(self, message: String) -> None:
        try:
            self._check_words(message.data)
        except ValueError as error:  # the previous instruction is no longer wanted either
            refusal = f"the instruction is refused: {error}"
            self._instruction.told("")
            self._ingest.instruct("", refusal)
            self._ingest.waiting_for = refusal
            self.get_logger().error(refusal)
            return
        self._instruction.told(message.data)
        self._ingest.instruct(message.data, self._instruction.missing)
        self.get_logger().info(f"instruction: {message.data!r}")

    def _on_question(self, message: String) -> None:
        assert self._stream is not None
        try:
            if not self._policy.answers:
                raise ValueError("the model cannot answer questions")
            if not self.active:
                raise ValueError("the node is not active: activate it first")
            self._check_words(message.data)
            self._stream.ask(message.data)
        except ValueError as error:
            self._unanswered.warning(f"question: {error}")
            self._texts.publish(convert.refusal_to_message(message.data, str(error), self.now_ns()))

    def _check_words(self, text: str) -> None:
        """Raises ValueError, with the number of tokens, for words that the policy cannot take."""
        self._policy.prompt(text, np.zeros(self._policy.joints))

    def _on_cancel(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        there = 0 if self._stream is None else self._stream.cancel()
        response.success, response.message = True, f"cancelled: {there} answers and waiting questions"
        return response

    def _on_motion(self, message: Motion) -> None:
        try:
            told = convert.execution_from_message(message)
        except ValueError as refusal:
            self._unreadable.error(f"motion refused: {refusal}")
            return
        self._inputs.stands = bool(message.reasons)
        if self._guiding.told(told) and self._stream is not None:
            self._stream.forget()
        if self._guiding.conflict:
            self._conflict.warning(self._guiding.conflict)

    def _observe(self) -> Observation | None:
        observation = self._ingest.observe(self.now_ns())
        if observation is not None:
            self._pace.observed(observation.stamp_ns, self.now_ns())
        return observation

    def _on_prefix(self, prefix: Prefix, observation: Observation) -> None:
        assert self._contract is not None
        known_as = self._session.session.id
        self._observed.publish(convert.observed_to_message(prefix, observation, self._contract, known_as))

    def _limit(self, chunk: Chunk, instruction: str) -> Chunk:
        """Give a new chunk its horizon. Guidance and the trajectory node both obey it, so it is set before
        either gets the chunk."""
        chunk = self._horizons.limit(chunk, instruction)
        self._executed.note(chunk, self.now_ns())
        return chunk

    def _on_chunk(self, chunk: Chunk, inference_s: float) -> None:
        assert self._contract is not None
        self._newest_chunk_ns, self._inputs.failed = chunk.stamp_ns, ""
        self._pace.made(chunk.stamp_ns, self.now_ns())
        self._chunks.send(chunk, inference_s)

    def _on_text(self, text: Text) -> None:
        self._texts.publish(convert.text_to_message(text))

    def _on_error(self, loop: str, error: Exception) -> None:
        self._errors += 1
        self._inputs.failed = f"the {loop} loop fails: {error}"
        if why := self.hopeless(error):
            fatal(f"{loop} loop: {why}", error)
            return
        trace = "".join(traceback.format_exception(error))
        self._failure.error(f"{loop} loop: {error}\n{trace}")

    def _report(self) -> None:
        assert self._stream is not None
        now_ns = self.now_ns()
        for stats in self._stream.stats():
            self._stats.publish(convert.loop_stats(stats, now_ns))
        self._streams.warn(now_ns)
        self._inputs.warn()
        if self.active:
            self._trained.look()

    def _statuses(self) -> Sequence[DiagnosticStatus]:
        if self._stream is None:
            return [status("inference", ERROR if self.trouble else OK, self.trouble or "not configured")]
        if not self.active:
            return [status("inference", OK, "not active")]
        assert self._contract is not None
        now_ns = self.now_ns()
        return [
            of_observations(
                self._inputs.now(),
                self._ingest.instruction,
                self._newest_chunk_ns,
                self._errors,
                self._inputs.busy,
            ),
            of_chunking(self._guiding, self._contract.chunk.step_dt_s),
            self._executed.status(),
            *self._streams.statuses(now_ns),
            self._trained.status(),
            of_overload(self._stream.degradation),
            of_partition(self._partitioned),
            *of_loops(self._stream.stats()),
        ]


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros inference`."""
    return run(InferenceNode, args)
