"""Stages from pixels to keys and values.

encode: the image encoder. prefill: the prefix stack. int8: both with int8 rows. finish: the hidden state that
text begins with. layered, groups: some layers alone, and frames in groups of layers. towers: image encoders
of policies that act by tokens.
"""
