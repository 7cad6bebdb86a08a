"""`vla trace`: what a robot did lately, for Perfetto, and where the time from image to command goes.

command: the subcommand; perfetto_file: the trace; latency: the table; bag: the same from a recording.
"""
