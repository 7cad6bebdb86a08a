"""Words and tokens.

tokenizer: words to tokens and back; decoding: tokens, one after another, from a model.
"""
