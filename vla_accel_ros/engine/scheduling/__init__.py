"""Which requests run, and when. scheduler: schedule, run, postprocess. queue: the requests that wait, and
cancellation. readiness: which of them may run. interface: what the scheduler asks of the runner."""
