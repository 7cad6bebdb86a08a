"""Runs a policy: one loop over one queue of requests.

engine: the public interface. config: its options; goals: sets many at once; options: refuses those that a
policy does not have. request: a caller's request, and the micro-batch that one launch computes.
loop: what a step of it does; scheduler: who steps it, and who waits; readiness: which requests may run;
simulated: all three in simulated time, computing nothing.
grid: when a stream's chunks are due. profile: expected durations.
rules/: which of the ready requests runs next; policies/: their former names.
lanes/: where it runs. runner/, actors/: compute micro-batches. kv/: keys and values.
stages/: captured micro-requests. robots: the robots that are served. streaming/: a stack at its own rates.
session: what an engine's numbers depend on, for replay. current_stream: the CUDA stream of a thread.
recent: a cache of what was used last.
"""
