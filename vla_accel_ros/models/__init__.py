"""What is computed: model configurations, torch reference modules, checkpoints, pre- and post-processing."""
