"""Text and tokens.

tokenizer: text to tokens and back. decoding: generates tokens with a model. t5: features of a text.
"""
