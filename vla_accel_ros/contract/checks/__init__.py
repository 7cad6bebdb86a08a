"""Checks of a contract. model_check, controller_check and graph_check compare it with a model, with
controllers' parameters and with a live graph; each result is a finding (findings). readings: what a policy's
actions are by their statistics."""
