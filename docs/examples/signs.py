"""No order, and the units of some with the other sign: each unit keeps its place."""

from rebasin_cli.groups.group import Signed


class Signs(Signed):  # the nearest map, random draws, what a file may hold: as of all signs
    told = "any signs, in places that stay"
    permutes = False


GROUP = Signs()
