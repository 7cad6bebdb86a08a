"""Folders of weights, in and out.

checkpoint: load_policy and describe, with the table of formats; formats, description, options: what a
format offers, what a folder says, how it is loaded. shards and streaming: tensors out of files, one by one;
checksum: which checkpoint it is; conversion and safetensors_writer: a folder of ours; progress: a bar.
"""
