"""A person with a leader arm and a button, over real topics and services: the arm follows, stops and is given
back."""

from __future__ import annotations

import numpy as np
import pytest
from calling import call
from chunks import Policy
from sensor_msgs.msg import JointState, Joy
from stand_ins import ARM, motion_of, write_contract
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert

S = 1_000_000_000
LEADER = "leader/joint_states"
TELEOP = {
    "topic": LEADER,
    "rate_hz": 50,
    "max_age_s": 0.5,
    "deadman": {"topic": "joy", "button": 1},
}
TIMEOUT_S = 90.0


class Person:
    """Publishes the leader's joints, and a button, from inside whatever is waited for. position: float64 [D],
    None for silence."""

    def __init__(self, operator: Operator, policy: Policy) -> None:
        self._operator, self._policy, self._sent_ns = operator, policy, 0
        self._leader = operator.node.create_publisher(JointState, LEADER, qos.SENSOR)
        self._joy = operator.node.create_publisher(Joy, "joy", qos.SENSOR)
        self.position: np.ndarray | None = None
        self.pressed = False

    def drives(self, condition):
        """The condition, with messages while it is waited for."""

        def ticking():
            now_ns = self._operator.now_ns()
            if now_ns - self._sent_ns >= S // 50:
                self._sent_ns = now_ns
                joy = Joy(buttons=[0, int(self.pressed)])
                convert.set_stamp(joy.header.stamp, now_ns)
                self._joy.publish(joy)
                if self.position is not None:
                    names = list(self._operator.contract.joint_names)
                    message = JointState(name=names, position=self.position.tolist())
                    convert.set_stamp(message.header.stamp, now_ns)
                    self._leader.publish(message)
            return condition()

        return self._policy.drives(ticking)


@pytest.fixture
def contract(tmp_path) -> Contract:
    return Contract.load(
        write_contract(tmp_path, {"topic": "arm_controller/joint_trajectory"}, teleop=TELEOP)
    )


@pytest.fixture
def person(operator, arm, start, tmp_path) -> Person:
    policy = Policy(operator)
    policy.goal = np.array([0.9, 0.5, 1.4, -0.5, 0.8, 0.5])
    person, begin = Person(operator, policy), arm.array(ARM)
    start("trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"))
    moved = person.drives(lambda: np.abs(arm.array(ARM) - begin).max() > 0.2)
    operator.wait(moved, TIMEOUT_S, "motion of the policy")
    return person


def trigger(operator: Operator, name: str) -> str:
    answer = call(operator, Trigger, f"trajectory/{name}", Trigger.Request())
    assert answer.success
    return answer.message


def test_a_person_takes_the_arm_over_by_a_button_and_lets_go_of_it(operator, arm, person):
    names = list(operator.contract.joint_names)
    person.position, person.pressed = np.array([-0.2, 0.1, 1.0, 0.0, 0.1, 0.5]), True
    goal = dict(zip(names, person.position))

    def arrived() -> bool:
        return all(abs(arm.position[name] - goal[name]) < 0.03 for name in ARM)

    operator.wait(person.drives(arrived), TIMEOUT_S, "motion to the leader arm")
    operator.wait(
        person.drives(lambda: bool(operator.motions) and operator.motions[-1].state == 5),
        TIMEOUT_S,
        "state human",
    )
    operator.wait(person.drives(lambda: motion_of(operator) == "human"), TIMEOUT_S, "word of a person")
    person.pressed = False
    operator.wait(person.drives(lambda: arm.array(ARM)[0] > 0.5), TIMEOUT_S, "motion of the policy again")


def test_a_service_takes_it_over_and_a_leader_that_falls_silent_stops_it_by_name(operator, arm, person):
    person.position, person.pressed = np.array([-0.2, 0.1, 1.0, 0.0, 0.1, 0.5]), True
    assert LEADER in trigger(operator, "take_over")
    operator.wait(person.drives(lambda: arm.array(ARM)[0] < 0.0), TIMEOUT_S, "motion to the leader arm")
    person.position = None
    silent = person.drives(lambda: "holding" in motion_of(operator) and "teleop" in motion_of(operator))
    operator.wait(silent, TIMEOUT_S, "word of the leader's silence")
    stood = arm.array(ARM)
    assert "policy" in trigger(operator, "give_back")
    operator.wait(person.drives(lambda: arm.array(ARM)[0] > stood[0] + 0.3), TIMEOUT_S, "motion again")
