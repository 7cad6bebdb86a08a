"""Which requests run, and when. scheduler: schedule, run, postprocess. queue: the requests that wait, and
cancellation. readiness: which of them may run. streams: of robots, while they run. interface: what the
scheduler asks of the runner."""
