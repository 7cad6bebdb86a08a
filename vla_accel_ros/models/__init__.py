"""What is computed: networks in plain torch, their checkpoints, pre- and post-processing.

Each family has a folder: pi/ (pi0 and pi0.5), pi_fast/, openvla/, openvla_oft/, smolvla/, groot/, xvla/,
fastwam/, mimic_video/.
Shared: layers/ (decoder stacks and image towers), flow/ (sampling and guidance of flow matching), text/
(tokenizers and decoding), processing/ (pixels and statistics), checkpoints/ (reading and writing weights).
micro_requests: what a family declares. network, network_policy: what all networks and policies do alike.
policies: the interface of every policy. policy: that of pi0 and pi0.5. config: sizes. encoder_sizes: of T5
and Wan's VAE. inferred: sizes from shapes of tensors. json_file: bounded JSON. device: finding a device.
calibration: input magnitudes that products of 8-bit rows need.
"""
