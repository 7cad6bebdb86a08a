"""The lifecycle node `inference` that runs the model itself: images, joints, an instruction and questions in,
action chunks and answers out.

Vision, actions and text stream through one engine at their own rates (engine/streaming/streaming.py); this
node passes inputs on and reports. What does not depend on the engine is in nodes/inference/observing.py. It
publishes `session` and `observed`, from which every chunk can be computed again; LoopStats once a second for
vision, action and language. /diagnostics has times and misses of these, what is given up under overload, and
what chunks wait for; `~/policy_images` shows what the network sees. Configure loads the model, compares it
with the contract and warms up. A changed instruction takes effect with the next frame. Each chunk is guided
to continue the previous one while the trajectory node reports, on `motion`, that it runs in mode `rtc`. A
`question` is answered beside acting, several at once, in the time that is left; `~/cancel_answers` cancels
them. The service get_action_chunk makes one chunk for somebody else (action_chunks.py).
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import LoopStats
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.guidance import Execution
from vla_accel_ros.control.chunking.pace import ChunkPace
from vla_accel_ros.control.horizon import Horizons
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.streaming.ports import Ports, Text
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.models.device import device_fault
from vla_accel_ros.models.micro_requests import DENOISE
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.inference.loading import trained_state
from vla_accel_ros.nodes.inference.observing import ObservingNode
from vla_accel_ros.nodes.inference.policy_images import PolicyImages
from vla_accel_ros.nodes.inference.reports import (
    HorizonReport,
    SessionTopic,
    of_chunking,
    of_loops,
    of_overload,
    of_partition,
)
from vla_accel_ros.nodes.inference.setup import chosen, guiding, load_engine, paces, session, trained_images
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.fleet import EXECUTABLES, LOCAL
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.running.shutdown import fatal
from vla_accel_ros.nodes.throttled import AGAIN_S, Throttled
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.sensing.inputs import RobotInputs
from vla_accel_ros.sensing.trained import TrainedInputs
from vla_accel_ros.types import Chunk, Observation


class InferenceNode(ObservingNode):
    """The node inference; see the module docstring and nodes/params/inference.py."""

    def __init__(self) -> None:
        super().__init__()
        self._conflict, self._failure = Throttled(self, AGAIN_S), Throttled(self, AGAIN_S)

    def configure(self) -> None:
        contract = self._contract = Contract.load(value(self, "contract") or demo_contract())
        if (engine := value(self, "engine")) != LOCAL:
            raise ValueError(
                f"engine is {engine}: start the executable {EXECUTABLES[engine]}, which needs no GPU"
            )
        load = chosen(self, plans_with_rates=True)
        # an invalid horizon is refused before a model is loaded
        self._horizons = Horizons(value(self, "horizon"))
        engine, warm_s = load_engine(self, load, contract)
        flow = engine.policy.chain.acts == DENOISE
        self._policy, self._partitioned = engine.policy, engine.runner.partitioned
        loops = paces(self)
        self._horizons.check(engine.config.steps if flow else 0)
        self._executed = HorizonReport(self._horizons.spec)
        pace = ChunkPace(contract.chunk.max_age_s, min(loops["vision"].rate_hz, loops["action"].rate_hz))
        pace.expect(warm_s, warm_s + 1.0 / min(camera.rate_hz for camera in contract.cameras))
        ingest = Ingest(
            contract,
            self.image_hint,
            page_lock=engine.policy.device.type == "cuda",
            least_images=engine.policy.chain.least_images,
        )
        trained = TrainedInputs(contract, trained_state(engine.policy), trained_images(load.model))
        self.restore_instruction()
        inputs = RobotInputs(contract, ingest, self.instruction, pace, trained)
        ports = Ports(
            observe=lambda: inputs.observe(self.now_ns()),
            observed=ingest.observed,
            newest_state=ingest.newest_state,
            on_chunk=self.send,
            on_text=self._on_text,
            on_error=self._on_error,
            on_prefix=self._on_prefix,
            frames=ingest.sets,
            limit=self._limit,
        )
        self._guiding = guiding(self, engine, contract)
        self._stream = Streaming(
            engine,
            ports,
            loops["vision"],
            loops["action"],
            loops.get("language"),
            engine.config.answer_tokens,
            self._guiding.chunking if flow else None,
        )
        self._stats = self.output(LoopStats, "loop_stats", qos.REPORT)
        self.observe_robot(contract, inputs, engine.policy.chain.answers)
        self.every(1.0, self._publish_stats)
        self._pictures = PolicyImages(self, engine.policy, lambda error: self._on_error("image", error))
        try:
            from vla_accel_ros.nodes.inference.action_chunks import ActionChunks
        except ImportError as error:
            self.get_logger().warning(f"no get_action_chunk: {error}: build vla_accel_msgs again")
        else:
            ActionChunks(self, engine, contract, ingest)
        self._session = SessionTopic(self, session(self, engine, load, contract))

    def activate(self) -> None:
        super().activate()
        self.log_pace()
        self._guiding.restart()
        self._stream.start()

    def deactivate(self) -> None:
        self._stream.stop()
        super().deactivate()

    def release(self) -> None:
        super().release()
        # They hold the model: the next configuration must find its memory free.
        for name in ("_policy", "_partitioned", "_guiding", "_stream", "_pictures"):
            self.__dict__.pop(name, None)

    def hopeless(self, error: Exception) -> str:
        return "the GPU refuses every call of this process" if device_fault(error) else ""

    def restart(self) -> None:
        self._guiding.restart()
        self._stream.forget()

    def check_words(self, text: str) -> None:
        """Raises ValueError, with the number of tokens, for words that the policy cannot take."""
        self._policy.prompt(text, np.zeros(self._policy.joints))

    def executed(self, execution: Execution) -> None:
        if self._guiding.told(execution):
            self._stream.forget()
        if self._guiding.conflict:
            self._conflict.warning(self._guiding.conflict)

    def ask(self, question: str) -> None:
        if not self._policy.chain.answers:
            raise ValueError("the model cannot answer questions")
        self.check_words(question)
        self._stream.ask(question)

    def cancel_answers(self) -> int:
        return self._stream.cancel()

    def joints_came(self) -> None:
        self._stream.joints_came()

    def chunk_statuses(self) -> Sequence[DiagnosticStatus]:
        return [
            of_chunking(self._guiding, self._contract.chunk.step_dt_s),
            self._executed.status(),
            of_overload(self._stream.degradation),
            of_partition(self._partitioned),
            *of_loops(self._stream.stats()),
        ]

    def _on_prefix(self, prefix: Prefix, observation: Observation) -> None:
        session_id = self._session.session.id
        message = convert.observed_to_message(prefix, observation, self._contract, session_id)
        self.observed.publish(message)
        self._pictures.take(observation)

    def _limit(self, chunk: Chunk, instruction: str) -> Chunk:
        """Give a new chunk its horizon. Guidance and the trajectory node both obey it, so it is set before
        either gets the chunk."""
        chunk = self._horizons.limit(chunk, instruction)
        self._executed.note(chunk, self.now_ns())
        return chunk

    def _on_text(self, text: Text) -> None:
        self.texts.publish(convert.text_to_message(text))
        if text.finished:
            self.steering.hear(text.prefix.instruction, text.text)

    def _on_error(self, loop: str, error: Exception) -> None:
        self.inputs.fail(f"the {loop} loop fails: {error}")
        if reason := self.hopeless(error):
            fatal(f"{loop} loop: {reason}", error)
            return
        trace = "".join(traceback.format_exception(error))
        self._failure.error(f"{loop} loop: {error}\n{trace}")

    def _publish_stats(self) -> None:
        for stats in self._stream.stats():
            self._stats.publish(convert.loop_stats(stats, self.now_ns()))


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros inference`."""
    return run(InferenceNode, args)
