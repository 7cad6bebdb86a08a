"""Text and tokens.

tokenizer: text to tokens and back. decoding: chooses tokens. t5: features of a text.
"""
