"""The engine of `wm`, `merge-many`, `universe`: similarities of weights, descent, proofs, bounds."""
