"""Runs a policy: one scheduler over one queue of requests.

engine: the public interface. config: its options; options: refuses those that a policy does not have.
request: a caller's request, and the micro-batch that one launch computes. scheduler: schedule, run,
postprocess. queue: the requests that wait, and cancellation. readiness: which requests may run. policies/:
which of them runs next. profile: expected durations. lanes/: where it runs.
runner: computes micro-batches with frames (prefixes; captured_prefill: by captured stages), actors/ (actions)
and answers (text). robots: the robots that are served.
streaming, loop: a running stack at its own rates. ports: its inputs and outputs. session: what an engine's
numbers depend on, for replay. kv/: keys and values. stages/: captured micro-requests. current_stream: the
CUDA stream of a thread.
"""
