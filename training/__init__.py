"""How the bundled policy is made (`vla train-demo`): it is in the sources, not in the installed package.

recipe: sizes, seeds, rounds, rates. expert: what to do in any state of the simulated arm; demonstrations:
training data from it. data: shards of recorded episodes; samples, objective: what is trained on, and for;
vocabulary: its tokens. train: the rounds.
"""
