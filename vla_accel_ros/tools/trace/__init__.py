"""`vla trace`: writes a robot's latest seconds for Perfetto, and shows where the time from image to command
goes.

command is the subcommand. latency makes the table, perfetto_file the trace; bag reads both from a recording.
"""
