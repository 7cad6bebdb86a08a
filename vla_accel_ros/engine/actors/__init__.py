"""Computes action requests.

flow: chunks by flow matching, whole or staggered in seats. tokens: actions token by token. guidance:
agreement with a chunk that is being executed. step_states: joints for the steps of a chunk in progress.
"""
