"""Read and write checkpoint folders.

checkpoint: load_policy, with_statistics and describe. formats: what a checkpoint format is, and the options
of a load. fields: those that a published JSON file may have. description: what a folder says of itself.
lerobot: what all folders of lerobot have. shards, streaming: read safetensors files one tensor at a time.
torch_file: those of torch.save, as data. checksum: SHA-256 of a checkpoint. conversion, safetensors_writer:
write our own folders. adapters: LoRA adapters that a conversion merges. progress: a progress bar.
"""
