"""Sections of the file: each is read by one function, which refuses what it cannot mean. readers: streams,
cameras, joints, controllers and times; base: a mobile one; force: its force sensors; teleop: what a person
commands it by; hands: hands that a policy knows by their pose; keys: those of a policy server's requests."""
