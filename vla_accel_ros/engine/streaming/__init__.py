"""A running stack at its own rates. streaming: the streams of one robot. loop: a loop that keeps a rate, and
its statistics. ports: its inputs and outputs."""
