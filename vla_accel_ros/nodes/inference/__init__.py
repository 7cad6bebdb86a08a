"""The node that runs the model: frames, actions and answers.

node: the lifecycle node; setup: what it makes of its parameters; loading: a checkpoint and a contract become
an engine; streams: its subscriptions; chunk_output: where its chunks go; instruction: the last one, over a
restart; inputs: its topic about what it receives; reports: what it tells of its engine and of its chunks;
planned: its rates against a plan. Of these, streams, instruction, inputs and chunk_output are
fleet_inference's too, and import without torch.
"""
