"""What computes action requests.

flow: chunks by flow matching, whole or in seats; tokens: actions token by token; guidance: by a chunk
that is executed; step_states: joints for the steps of a chunk in progress.
"""
