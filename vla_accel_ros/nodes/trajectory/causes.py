"""Looks in the graph for why the robot stands: commands that nobody executes, and inputs that nobody sends.

ROS does not report a topic without anybody at its other end: the robot would be said to run while its
commands go nowhere, and its drive would be blamed for not following. So a topic of commands to which only
recorders, bags or bridges listen holds the robot. For inputs that do not come it finds who should send them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vla_accel_ros.contract.checks.graph_check import Wanted, fitting, outputs, states
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.following.reasons import listed
from vla_accel_ros.control.following.watchdog import CLOCK_STANDS
from vla_accel_ros.control.publishers import CHUNKS, Graph
from vla_accel_ros.nodes.graph import UNNAMED, GraphCheck, endpoints, look, name_of, publishers
from vla_accel_ros.nodes.running.host import Host
from vla_accel_ros.nodes.running.lifecycle import ManagedNode

# A listener is discovered before its node. Its name is awaited for some looks; it may belong to no ROS node.
_UNNAMED_LOOKS = 5


class Causes:
    """Of a trajectory node; looks a few times a second.

    Attributes: `hindrances`, why the robot must not move -> what that follows from (Safety.hold); `silence`,
    why no joint states come at all.
    """

    def __init__(self, node: ManagedNode, contract: Contract, graph: GraphCheck) -> None:
        self._node, self._contract, self._graph = node, contract, graph
        self._unnamed, self._host = Counter[str](), Host()
        self.hindrances: Mapping[str, Sequence[str]] = {}
        self.silence = ""

    def look(self, released: bool) -> None:
        """Look now. released: others may command the controllers."""
        reasons = [] if released else [s for s in map(self._unheard, outputs(self._contract)) if s]
        clock = self._node.get_clock()
        if clock.ros_time_is_active and not clock.now().nanoseconds and not publishers(self._node, "/clock"):
            reasons.append(f"{CLOCK_STANDS}: use_sim_time is true, but nobody publishes /clock")
        self.hindrances = dict.fromkeys(reasons, ())

    def publishers(self) -> Graph:
        """Who publishes the topics on which a second publisher matters."""
        node, topics = self._node, [controller.topic for controller in self._contract.commanded]
        return {
            topic: [
                (tuple(info.endpoint_gid), "" if info.node_name == UNNAMED else name_of(info))
                for info in node.get_publishers_info_by_topic(node.resolve_topic_name(topic))
            ]
            for topic in (self._contract.joint_states.topic, CHUNKS, *topics)
        }

    def unheard(self, joint: str) -> tuple[str, ...]:
        """Beginnings of the reasons for which a joint may not follow: nobody listens to its topics."""
        pairs = zip(outputs(self._contract), self._contract.commanded, strict=True)
        return tuple(output.about for output, controller in pairs if joint in controller.joints)

    def look_for_joints(self) -> None:
        """Look for who should send the joint states, which are late."""
        topic = states(self._contract)
        silent = f"{listed(publishers(self._node, topic.topic))} publishes {topic.topic}, and sends nothing"
        self.silence = self._graph.why(topic.about) or silent

    def slow(self) -> str:
        """Why inputs that come are late, if that is known."""
        return self._host.busy

    def chunks(self) -> str:
        """Why neither chunks nor reports of inference come."""
        inference = f"{self._node.get_namespace().rstrip('/')}/inference"
        nodes = [f"{space.rstrip('/')}/{name}" for name, space in self._node.get_node_names_and_namespaces()]
        if inference in nodes:
            return f"{inference} is in the graph: it is starting, not active, or hangs"
        publishing = [name for name in publishers(self._node, "action_chunk") if name != inference]
        if publishing:
            return f"{listed(sorted(publishing))} publishes action_chunk, and sends nothing"
        elsewhere = sorted(name for name in nodes if name.endswith("/inference"))
        hint = f", but {listed(elsewhere)} does: start both in one namespace" if elsewhere else ": start it"
        return f"{inference} does not run{hint}"

    def _unheard(self, wanted: Wanted) -> str:
        """The sentence of a topic of commands that nobody executes, else empty."""
        topic, node = self._node.resolve_topic_name(wanted.topic), self._node
        listeners = endpoints(node, topic, ours=True)
        named = fitting(wanted, [end for end in listeners if not end.node.endswith(UNNAMED)])
        fits = named or fitting(wanted, listeners, publishers(node, self._contract.joint_states.topic))
        unnamed = fits and not named and all(end.node.endswith(UNNAMED) for end in fits)
        self._unnamed[topic] = self._unnamed[topic] + 1 if unnamed else 0
        if fits and not 0 < self._unnamed[topic] <= _UNNAMED_LOOKS:
            return ""
        if fits:
            return f"{wanted.about}: {topic} has a listener whose node is not known yet"
        return str(look(node, [wanted], self._contract.joint_states.topic)[0])
