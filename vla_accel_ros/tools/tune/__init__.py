"""`vla tune`: finds the fastest launch settings of each kernel.

candidates lists the settings. pieces, row_pieces and wide_pieces run each kernel by itself. choose picks the
fastest, in the end by the time of whole layers. steps keeps the progress, and command is the subcommand.
"""
