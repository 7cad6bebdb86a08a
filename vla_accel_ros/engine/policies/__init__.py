"""Scheduling policies: which micro-requests run next, and together. They are pure objects; the caller gives
the time.

policy: the interface, and what all policies plan with. chunks: whole and staggered flow chunks.
throughput, batches: chunks of many robots, for the most chunks or for short waits. tokens: frames of policies
that act by tokens. text: answers in the slack of the others. lanes: a policy for each lane. overload: what is
given up under overload. partition: how many multiprocessors actions get.
Another package can add a policy through the entry point `vla_accel_ros.policies`.
"""
