"""Symmetries beyond order: signs, scales, rotations and invertible maps of a word's units, and the best of
each.

What a word's group is stands in the spec; how an element acts on tensors, is drawn, composed, stored and
found from a matrix of inner products stands here. No network, and nothing that searches.
"""
