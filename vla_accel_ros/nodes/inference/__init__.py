"""The node that runs the model: frames, actions and answers.

node: the lifecycle node; loading: a checkpoint and a contract become an engine; streams: its subscriptions;
horizon: how far its chunks may be executed; chunk_output: where they go; instruction: the last one, over a
restart; reports: its topics about its inputs and its engine, and its diagnostics.
"""
