"""Scheduling rules of a fleet: which robots are served next, together, and by which replica. Pure objects
with injected time.

rule: the interface, and what all built-in rules share: emergencies, priorities, placement, a bound on
waiting. orders: first in first out, least attained service, oldest task first. kairos: highest wait ratio.
remaining: orders by remaining work, which is estimated. Other packages add
rules by the entry point `vla_accel_ros.fleet_rules`.
"""
