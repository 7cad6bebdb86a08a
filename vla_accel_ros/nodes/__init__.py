"""Thin rclpy lifecycle nodes. The only folder that imports rclpy.

The nodes: inference/, in its place fleet_inference/ or openpi_inference/ if a fleet or a policy server makes
the chunks, trajectory/, camera/, recorder/, fleet/ (the scheduler), sim_robot (sim_outputs: what it publishes
about the scene). adapters/: one for each kind of controller; controllers/: what controllers report about
themselves; params/: every parameter, as data; clients/: programs that talk to a running robot. Shared by all:
running/ (a node's life), messages/ (to and from this package's types); declare, qos, interfaces, chunk_topic,
instruction_topic, service_calls, graph, diagnostics, brief, throttled and timeline.
"""
