"""The node that looks, acts and speaks.

node: the lifecycle node; loading: a checkpoint and a contract become an engine; streams: its subscriptions;
inputs, session: what it tells of its inputs and of its engine; instruction: what it was told, over a restart;
status: its diagnostics.
"""
