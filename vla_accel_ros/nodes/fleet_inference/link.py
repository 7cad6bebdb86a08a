"""A robot's topics to its fleet's scheduler, all in the robot's namespace.

It publishes fleet/robot (latched), fleet/request and fleet/question, and subscribes to fleet/answer,
fleet/call, fleet/text, fleet/admission and fleet/session (both latched). Unusable messages are logged with
one sentence, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from vla_accel_msgs.msg import (
    FleetAdmission,
    FleetAnswer,
    FleetCall,
    FleetRequest,
    FleetRobot,
    LanguageOutput,
)
from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.protocol import (
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    TextAnswer,
)
from vla_accel_ros.fleet.robot.client import Ask, FleetClient
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.fleet import fleet_convert as convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.throttled import Throttled
from vla_accel_ros.types import Chunk

ROBOT, REQUEST, ANSWER, CALL, ADMISSION, QUESTION, TEXT, SESSION = (
    f"fleet/{name}"
    for name in ("robot", "request", "answer", "call", "admission", "question", "text", "session")
)
LATCHED = ADMISSION, SESSION


class FleetLink:
    """Exists from a node's configuration to its release. take: called with each chunk to execute, in ROS
    units, and its answer. said: called with answers to questions; told: with the session of a replica.

    Attributes: `refused`, unusable messages by topic; `replica`, which computed the last chunk; `queued_s`,
    how long that waited for its turn.
    """

    def __init__(
        self,
        node: ManagedNode,
        contract: Contract,
        client: FleetClient,
        description: RobotDescription,
        take: Callable[[Chunk, ChunkAnswer], None],
        said: Callable[[TextAnswer], None],
        told: Callable[[Session], None],
    ) -> None:
        self._node, self._contract, self._client, self._take = node, contract, client, take
        self._said, self._told = said, told
        self._description = description
        self.refused: Counter[str] = Counter()
        self._refusal = Throttled(node, 1.0)
        self.replica, self.queued_s = "", 0.0
        self._robot = node.output(FleetRobot, ROBOT, qos.LATCHED)
        self._request = node.output(FleetRequest, REQUEST, qos.COMMAND)
        self._question = node.output(FleetRequest, QUESTION, qos.REPORT)
        for kind, topic, take_in, profile in (
            (FleetAnswer, ANSWER, self._on_answer, qos.REPORT),
            (FleetCall, CALL, self._on_call, qos.COMMAND),
            (FleetAdmission, ADMISSION, self._on_admission, qos.LATCHED),
            (LanguageOutput, TEXT, self._on_text, qos.REPORT),
            (SessionMessage, SESSION, self._on_session, qos.ALL_LATCHED),
        ):
            node.listen(kind, topic, partial(self._try, topic, take_in), profile)

    def announce(self) -> None:
        """Publish the robot's description to the scheduler."""
        self._robot.publish(convert.description_to_message(self._description, self._node.now_ns()))

    def send(self, ask: Ask, seen: EncodedObservation) -> None:
        """Request a chunk, with an observation."""
        request = ChunkRequest(observation=seen, priority=self._description.priority, **vars(ask))
        self._request.publish(convert.request_to_message(request))

    def ask(self, question: ChunkRequest) -> None:
        """Ask a question, with an observation."""
        self._question.publish(convert.request_to_message(question))

    def _on_text(self, message: LanguageOutput) -> None:
        description = self._description
        self._said(convert.text_from_message(message, description.engine, description.robot))

    def _on_session(self, message: SessionMessage) -> None:
        self._told(Session.from_message(message))

    def _on_answer(self, message: FleetAnswer) -> None:
        answer = convert.answer_from_message(message, self._contract)
        chunk = self._client.answered(answer, self._node.now_ns())
        if chunk is not None:
            self.replica, self.queued_s = answer.replica, answer.queued_s
            self._take(chunk, answer)

    def _on_call(self, message: FleetCall) -> None:
        self._client.called(convert.call_from_message(message), self._node.now_ns())

    def _on_admission(self, message: FleetAdmission) -> None:
        admission, previous = convert.admission_from_message(message), self._client.admission
        if not self._client.admitted(admission, self._node.now_ns()) or admission == previous:
            return
        if admission.admitted:
            slower = f": {admission.reason}" if admission.reason else ""
            self._node.get_logger().info(f"the fleet's scheduler serves this robot{slower}")
        else:
            self._node.get_logger().warning(
                f"the fleet's scheduler does not serve this robot: {admission.reason}"
            )

    def _try(self, topic: str, take: Callable[[Any], None], message: object) -> None:
        if not self._node.active and topic not in LATCHED:
            return
        try:
            take(message)
        except ValueError as refusal:
            self.refused[topic] += 1
            self._refusal.error(str(refusal))
