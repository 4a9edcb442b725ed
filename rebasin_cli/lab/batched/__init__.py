"""Many small multilayer perceptrons at once: one batched product trains or measures them all.

A stack is a list of layers (weight (N, out, in), bias (N, out)) of N networks of one shape. They share
nothing: each has its own first weights, its own order of samples, its own optimiser's state.
"""
