"""Full-size models of random weights on a GPU: what is run, what else there is, and how it is shown.

subjects, policies: models, observations and the ways to run them. roofline: the least time there is.
compiled: torch.compile. figures, report, gpu: how runs are summed up, shown, and kept to themselves.
"""
