"""Any order, and each unit times a positive number; a balance leaves an order of it."""

from .. import group


class Scaled(group.Scaled):
    told = "any order and positive scales"


GROUP = Scaled()
