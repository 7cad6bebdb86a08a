"""The node that runs the model: frames, actions and answers.

observing: what it shares with fleet_inference, without torch: its topics (streams: cameras and joints;
chunk_output: where its chunks go) and its diagnostics. node: the lifecycle node; action_chunks: the service
get_action_chunk; steering: subtasks; setup: objects made from its
parameters; loading: makes an engine from a checkpoint and a contract; reports: diagnostics of its engine and
chunks; policy_images: what the network sees.
"""
