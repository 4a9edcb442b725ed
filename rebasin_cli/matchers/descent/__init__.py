"""The engine of `wm`, `merge-many`, `universe`: coordinate descent over words of any group.

Similarities of weights, the steps that are taken on them (an order, starred words, a projection on a group),
sweeps, proofs, bounds, and mixtures of many models. Orders are found in place; elements beyond them are
multiplied into the second model.
"""
