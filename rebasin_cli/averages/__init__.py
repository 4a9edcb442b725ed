"""Weights from several models, as they are: means, lines, soups, what of a model is averaged and what is not.

Nothing here permutes, and nothing opens a file. Tensors are made one at a time, and one in blocks, so a mean
of many large models needs little memory.
"""
