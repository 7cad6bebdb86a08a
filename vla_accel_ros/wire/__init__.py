"""Other people's protocols. arrays: messages of openpi's websocket. keys: requests by their keys. answering:
a request answered by an engine. server: many clients at once. dialects: what servers do differently. client:
of anybody's server. asking: a robot's chunks from one. continuing: real-time chunking with one."""
