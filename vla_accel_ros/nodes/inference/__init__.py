"""The node that runs the model: frames, actions and answers.

node: the lifecycle node; loading: a checkpoint and a contract become an engine; streams: its subscriptions;
inputs, session: its topics about its inputs and its engine; instruction: the last one, over a restart;
status: its diagnostics.
"""
