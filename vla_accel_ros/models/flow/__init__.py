"""Flow matching: from noise to a chunk of actions.

sampling: integration. solver: one step of it, Euler or Adams-Bashforth. rtc: guidance towards the previous
chunk's actions that will still be executed. committed: chunks that begin with given actions. noise: initial
noise.
"""
