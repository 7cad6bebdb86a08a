"""The node that runs the model: frames, actions and answers.

node: the lifecycle node; setup: objects made from its parameters; loading: makes an engine from a checkpoint
and a contract; streams: its subscriptions; chunk_output: where its chunks go; instruction: the last one, kept
over a restart; inputs: its topic about its inputs; reports: diagnostics of its engine and chunks; trained:
warns of inputs that are not like those in training. fleet_inference uses streams, instruction, inputs,
trained and chunk_output too; these import without torch.
"""
