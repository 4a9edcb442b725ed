"""What leaves a network's function as it is: elements of a word's group, an order being one without maps.

The convention and its algebra, how elements act on tensors, are found from a matrix of inner products and
kept in files, and the canonical form, in which what may be folded or balanced away is. No network, and
nothing that searches.
"""
