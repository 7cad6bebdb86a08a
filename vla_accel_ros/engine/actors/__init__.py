"""Computes action requests.

flow: chunks by flow matching, whole or staggered in seats. tokens: actions token by token. continued: those
of captured forwards after a whole prefix. forward: chunks in one forward. noise: what chunks begin with.
step_states: joints for the steps of a chunk in progress.
"""
