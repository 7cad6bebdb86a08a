"""Scheduling rules: which micro-requests run next, and together. They are pure objects; the caller gives the
time.

rule: the interface, and the plan that all rules share. rules: the rules of an engine, by lane. chunks: whole
and staggered flow chunks. throughput, batches: chunks of many robots, for the most chunks or for short waits.
tokens: frames of policies that act by tokens. text: answers in the slack of the others. overload: what is
given up under overload. partition: how many multiprocessors actions get.
Another package can add a rule through the entry point `vla_accel_ros.policies`.
"""
