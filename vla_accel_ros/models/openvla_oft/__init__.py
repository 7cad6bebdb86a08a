"""OpenVLA-OFT: OpenVLA's network, which reads everything at once and answers with a chunk of numbers.

config: its sizes. model: the network in plain torch; stack: its Llama. pictures: what training did to a
camera image; jpeg: the first of it. policy: the conversion to and from a robot's units. checkpoint: its
published folders.
"""
