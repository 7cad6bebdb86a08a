"""Full-size models with random weights on a GPU: what runs, the alternatives, and how results are shown.

roofline: the least possible time. compiled: torch.compile. figures, report: summaries and tables. gpu: one
process per GPU. streamed: a stream at its rates. command, options, processes: what the commands share.
"""
