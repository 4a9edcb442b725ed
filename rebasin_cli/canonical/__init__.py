"""The canonical form of a model: the same function, and as little freedom left as can be.

What the network's graph lets be folded away is folded (`folding`), what may be scaled or take any matrix is
balanced (`balancing`). Where more than an order is free, models are compared unit by unit in this form only.
"""
