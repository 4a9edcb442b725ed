"""Any order of the units: what a word has of which a spec says nothing more."""

from ..group import Group


class Permutation(Group):
    told = "any order"


GROUP = Permutation()
