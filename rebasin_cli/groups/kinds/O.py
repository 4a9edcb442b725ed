"""Any rotation or reflection of all units together."""

from ..group import Rotations


class Orthogonal(Rotations):
    told = "any rotation"


GROUP = Orthogonal()
