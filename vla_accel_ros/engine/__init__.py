"""When it runs: one scheduler over one queue of requests.

engine: the front door; config: its options; options: what a policy must have for them; request: what somebody
wants, and what one launch computes; scheduler: schedule, run, postprocess; queue: who waits, and who is taken
out; readiness: which requests may run; policies/: what runs next; profile: what it is expected to take;
lanes/: where it runs; runner: computes micro-batches by frames (prefixes; captured_prefill: by stages),
actors/ and answers (text); robots: whom it serves; streaming, loop: a running stack at its own rates; ports:
what it takes and gives back; session: what an engine was, for replay; kv/: keys and values; stages/: captured
micro-requests; current_stream: where a thread computes.
"""
