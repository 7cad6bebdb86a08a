"""What is computed: networks in plain torch, their checkpoints, pre- and post-processing.

A family has a folder: pi/ (pi0 and pi0.5), openvla/, smolvla/. What families share: layers/ (decoder stacks
and image towers), flow/ (sampling and guidance of flow matching), text/ (tokens and words), processing/
(pixels and statistics), checkpoints/ (folders of weights in and out). policies: what every policy offers;
policy: that of pi0 and pi0.5; config: sizes; device: where a policy is; calibration: what products of int8
rows need to know of their inputs."""
