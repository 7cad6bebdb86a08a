"""What computes text.

decoder: forwards that advance all open answers; answers: what they have so far, and how they end.
"""
