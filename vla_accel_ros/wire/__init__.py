"""Other people's protocols. arrays: messages of openpi's websocket. keys: where its clients put what a policy
reads. answering: a request answered by an engine. server: many clients at once. client: of anybody's server.
asking: a robot's chunks from one."""
