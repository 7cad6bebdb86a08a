"""From pixels to keys and values.

encode: the image encoder; prefill: the prefix stack; int8: both of int8 rows; finish: what text begins with;
layered, groups: layers by themselves, and frames in groups of them; towers: vision of policies that act by
tokens.
"""
