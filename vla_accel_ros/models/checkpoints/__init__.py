"""Folders of weights, in and out.

checkpoint: load_policy and describe, with the table of formats; formats, description: what a
format offers and which choices it is given, what a folder says. shards and streaming: tensors out of files,
one by one; checksum: which checkpoint it is; conversion and safetensors_writer: a folder of ours; progress: a
bar.
"""
