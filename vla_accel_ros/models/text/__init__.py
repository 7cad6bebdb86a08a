"""Text and tokens.

tokenizer: text to tokens and back. decoding: generates tokens with a model.
"""
