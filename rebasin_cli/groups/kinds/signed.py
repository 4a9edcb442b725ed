"""Any order, and the units of some with the other sign."""

from .. import group


class Signed(group.Signed):
    told = "any order and signs"


GROUP = Signed()
