"""Scheduling policies: which micro-requests run next, together. Pure objects, whose time is given.

policy: the interface, and what all plan with. chunks: whole and staggered flow chunks.
throughput, batches: chunks of many robots, as many as can be made or each soon. tokens: frames of policies
that act by tokens. text: answers in the time that the others leave. lanes: a policy for each lane. overload:
what is given up when there is too much to do. partition: how many multiprocessors actions have.
agents: screens and answers of agents (bench/corun.py). Another policy may come from another package, by the
entry point `vla_accel_ros.policies`.
"""
