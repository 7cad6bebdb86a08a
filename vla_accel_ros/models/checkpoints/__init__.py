"""Read and write checkpoint folders.

checkpoint: load_policy, with_statistics and describe. formats: what a checkpoint format is, and the options
of a load. description: what a folder says of itself. shards, streaming: read safetensors files one tensor at
a time. checksum: SHA-256 of a checkpoint. conversion, safetensors_writer: write our own folders. progress: a
progress bar.
"""
