"""The groups that a word can have, by the name that a spec writes.

    permutation   any order of the units
    signed        any order, and the units of some with the other sign
    scaled        any order, and each unit times a positive number
    monomial      any order, and each unit times any number but 0
    O             any rotation (or reflection) of all units together
    O1            any rotation that keeps the vector of ones
    GL            any invertible matrix; of a starred word, one in each block
    pairs         no order, and a complex number for each two neighbours 2j, 2j + 1: an angle and a scale
    halves        the same, for units j and j + n/2

The last two are of queries and keys under rotary positions, which turn each pair by angles of its own.

An axis of a word `h` is multiplied by the element, one of `h~` by its inverse's transpose, and one of `|h|`
only takes the element's order: a gain stays positive where signs change. Of rotations the first two are one.
"""

from __future__ import annotations

PERMUTATION = "permutation"
MONOMIAL = ("signed", "scaled", "monomial")  # an order, and a number a unit
ROTATIONS = ("O", "O1")
PLANES = ("pairs", "halves")  # no permutation: `FittedSpec.ordered` has none of these words
MATRICES = (*ROTATIONS, "GL", *PLANES)
KINDS = (PERMUTATION, *MONOMIAL, *MATRICES)

SIGNED = ("signed", "monomial")  # those that may change signs
SCALED = ("scaled", "monomial", "GL", *PLANES)  # those that change norms, so that a balance comes first

TOLD = {
    "permutation": "any order",
    "signed": "any order and signs",
    "scaled": "any order and positive scales",
    "monomial": "any order, signs and scales",
    "O": "any rotation",
    "O1": "any rotation that keeps the vector of ones",
    "GL": "any invertible matrix",
    "pairs": "an angle and a scale for each two neighbours",
    "halves": "an angle and a scale for each unit and the one half an axis on",
}
