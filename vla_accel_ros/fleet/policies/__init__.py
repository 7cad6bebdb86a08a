"""Which robots of a fleet are served next, together, and by which replica. Pure objects, whose time is given.

policy: the interface, and what all share: emergencies, priorities, placement, a bound on waiting. orders:
first in, first out, least attained service, oldest task first. kairos: the wait ratio of Kairos. work: what
is known of the rounds that a task still needs. remaining: orders by remaining work. Another policy may come
from another package, by the entry point `vla_accel_ros.fleet_policies`.
"""
