"""A robot without a GPU over real topics: it moves by a fleet's chunks, and rests when there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from stack import commanded_acceleration, moved, rests

from vla_accel_msgs.msg import Motion
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.security import rights

PROGRAM = Path(__file__).with_name("fake_scheduler.py")
S = 1_000_000_000
NO_ANSWER = "no answer from the fleet's scheduler"


def contract_with(folder: Path, **chunk: float) -> str:
    """The simulated arm's contract with another age limit of chunks."""
    fields = yaml.safe_load(Path(demo_contract()).read_text())
    fields["chunk"] |= chunk
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(fields))
    return str(path)


def assert_within_limits(operator: Operator) -> None:
    assert operator.sent
    assert (commanded_acceleration(operator, 0) <= 1.001).all()
    limits = {joint.name: joint for joint in operator.contract.joints}
    for sent in operator.sent:
        path = sent.trajectory
        if len(path) < 2:
            continue
        position, velocity = path.sample(np.arange(path.start_ns, path.end_ns, 5_000_000))
        for column, name in enumerate(path.joints):
            joint = limits[name]
            assert np.abs(velocity[:, column]).max() <= 1.001 * joint.velocity
            assert joint.lower <= position[:, column].min() <= position[:, column].max() <= joint.upper


def assert_has_its_rights(operator: Operator) -> None:
    """The node has no topic that `vla security --fleet` forbids, and all of the fleet's."""
    own, node = rights(operator.contract, fleet=True)["inference"], operator.node
    for get, allowed in (
        (node.get_publisher_names_and_types_by_node, own.publish),
        (node.get_subscriber_names_and_types_by_node, own.subscribe),
    ):
        names = {name for name, _ in get("inference", "/")}
        full = {name if name[0] == "/" else f"/{name.replace('~', 'inference')}" for name in allowed}
        assert names <= full, names - full
        assert {name for name in full if name.startswith("/fleet/")} <= names


def test_it_rests_while_the_scheduler_is_gone_says_so_and_goes_on_with_the_next(
    start, operator, arm, cameras, tmp_path
) -> None:
    contract = contract_with(tmp_path)
    scheduler = start("fake_scheduler", program=PROGRAM, contract=contract)
    trajectory = start("trajectory", autostart=True, contract=contract, lead_s=0.05)
    start("fleet_inference", autostart=True, contract=contract, engine="fleet")
    operator.instruct("follow the wave")
    operator.wait(moved(operator, operator.now_ns()), 90.0, "motion by the fleet's chunks")
    scheduler.kill()
    trajectory.wait_for_log(NO_ANSWER)
    operator.wait(lambda: rests(operator), 30.0, "rest")
    since_ns, sent = operator.now_ns(), len(operator.sent)

    def told() -> bool:
        line = operator.diagnostics.get("inference: fleet")
        return line is not None and line.message.startswith(f"{NO_ANSWER} for ")

    operator.wait(told, 30.0, "the sentence in /diagnostics")
    operator.wait(
        lambda: any(NO_ANSWER in reason for motion in operator.motions for reason in motion.reasons),
        30.0,
        "the sentence in what the trajectory node says",
    )
    # Another attempt or two are lost meanwhile.
    operator.wait(lambda: operator.joints[-1].stamp_ns > since_ns + 3 * S, 30.0, "three seconds of rest")
    assert not moved(operator, since_ns)() and len(operator.sent) == sent
    scheduler.start()
    operator.wait(moved(operator, operator.now_ns()), 60.0, "motion by the next scheduler's chunks")
    assert_within_limits(operator)
    assert not arm.rejected


def test_slow_rounds_within_the_age_limit_do_not_stop_the_arm(
    start, operator, arm, cameras, tmp_path
) -> None:
    contract = contract_with(tmp_path, max_age_s=5.0)
    start("fake_scheduler", program=PROGRAM, contract=contract, delays="0.3,1.0,1.6,0.6")
    start("trajectory", autostart=True, contract=contract, lead_s=0.05)
    start("fleet_inference", autostart=True, contract=contract, engine="fleet", fleet_ask_at_s=4.0)
    operator.instruct("follow the wave")
    operator.wait(
        lambda: operator.motions and operator.motions[-1].state == Motion.RUNNING,
        90.0,
        "an arm that may move",
    )
    begun, before = len(operator.motions), len(operator.chunks)
    operator.wait(lambda: len(operator.chunks) >= before + 8, 90.0, "chunks of all delays, twice")
    ages_s = [(got.received_ns - got.chunk.stamp_ns) * 1e-9 for got in operator.chunks]
    assert max(ages_s) > 1.6
    stamps_ns = [got.chunk.stamp_ns for got in operator.chunks]
    assert stamps_ns == sorted(stamps_ns)
    assert_has_its_rights(operator)
    after = [motion for motion in operator.motions[begun:] if motion.state != Motion.RUNNING]
    assert not after, after
    assert_within_limits(operator)
