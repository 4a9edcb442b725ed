"""A three-way merge of named tensors, as git merges lines: what one side changed since the ancestor is taken.

A tensor has changed where its dtype, its shape or any bit of its values has. What both sides changed is
mixed, or a conflict. Tensors that mean something only together are taken from one side all of them, or mixed
as what they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..checkpoints.families import Family, Plan
from ..checkpoints.tensors import LazyTensors, plan_of
from ..errors import unknown
from ..types import Tensors
from .kinship import planned, same
from .means import line, mean_of
from .parts import running_statistics, show
from .tensors import finite_only
from .together import Products, families_of

BOTH = ("average", "sum", "ours", "theirs", "conflict")
COUNTER = "num_batches_tracked"  # of a norm: the larger one has seen more
WEIGHTS = {"average": (0.5, 0.5, 0.0), "sum": (1.0, 1.0, -1.0)}  # of ours, theirs, the ancestor


@dataclass(frozen=True)
class ThreeWay:
    """Where every tensor comes from ("ours", "theirs", "average", "sum"); what conflicts, and why.

    `products` are mixed as what they stand for.
    """

    taken: dict[str, str]
    conflicts: dict[str, str]
    removed: tuple[str, ...] = ()
    products: Products = field(default_factory=Products)


def three_way(
    base: Tensors, ours: Tensors, theirs: Tensors, *, both: str | None = None, statistics: bool = False
) -> ThreeWay:
    """Compare both sides with their ancestor, which is empty where there is none.

    `both` says what becomes of what both changed: "average", "sum" (ours + theirs − base, so both changes in
    full), "ours", "theirs" or "conflict"; None is "average", and "conflict" without an ancestor: nothing says
    then that they share a basin. `statistics` lets running statistics be mixed, too.
    """
    if both is not None and both not in BOTH:
        raise unknown("choice for --both", both, BOTH)
    both = both or ("average" if len(base) else "conflict")
    plans = {"base": plan_of(base), "ours": plan_of(ours), "theirs": plan_of(theirs)}
    norms = set() if statistics else {*running_statistics([*{**plans["ours"], **plans["theirs"]}])}
    taken: dict[str, str] = {}
    conflicts: dict[str, str] = {}
    removed: list[str] = []
    mixed: list[Family] = []
    of = Products(tuple(families_of(plans.values()))).members
    sides: dict[str, tuple[str, str]] = {}  # of members of families, all of which are decided together
    for name in dict.fromkeys([*plans["ours"], *plans["theirs"], *plans["base"]]):
        if name in of and name not in sides:
            models = {"base": base, "ours": ours, "theirs": theirs}
            found = _of_family(of[name], plans, models, both, norms)
            sides |= found
            mixed += [of[name]] * (found[name][0] in WEIGHTS and of[name].kind.exact)
        if name in sides:
            side, why = sides[name]
        elif (side := _changed_by(base, ours, theirs, name)) == "both":
            side, why = _of_both(name, plans, ours, theirs, both, norms)
        else:
            why = ""
        if why:
            conflicts[name] = why
        elif name in (theirs if side == "theirs" else ours):
            taken[name] = side
        else:
            removed.append(name)
    return ThreeWay(taken, conflicts, tuple(removed), Products(tuple(mixed)))


def _changed_by(base: Tensors, ours: Tensors, theirs: Tensors, name: str) -> str:
    """Whose tensor is taken: "ours", also where nobody changed it, "theirs", or "both" did."""
    if same(ours, theirs, name) or same(base, theirs, name):
        return "ours"
    return "theirs" if same(base, ours, name) else "both"


def _of_family(
    family: Family,
    plans: Mapping[str, Plan],
    models: Mapping[str, Tensors],
    both: str,
    norms: Collection[str],
) -> dict[str, tuple[str, str]]:
    """What becomes of each member, and why that is a conflict: one side's all of them, or mixed together."""
    names, kind = [*family.members.values()], family.kind
    base, ours, theirs = models["base"], models["ours"], models["theirs"]
    changed = {name: _changed_by(base, ours, theirs, name) for name in names if not same(ours, theirs, name)}
    sides = {*changed.values()}
    if len(sides) < 2 and sides != {"both"}:
        return dict.fromkeys(names, (sides.pop() if sides else "ours", ""))
    if both in ("ours", "theirs"):
        return dict.fromkeys(names, (both, ""))
    if len(changed) == 1 and (len(names) == 1 or {family.role_of(name) for name in changed} <= kind.free):
        (name,) = changed
        return dict.fromkeys(names, ("ours", "")) | {name: _of_both(name, plans, ours, theirs, both, norms)}
    mixing = [plans[side] for side in ("ours", "theirs", "base")[: 2 + (both == "sum")]]
    alike = all(
        [plan.get(name) for name in names] == [mixing[0].get(name) for name in names] for plan in mixing
    )
    if both == "conflict":
        why = "changed by both"
    elif not kind.exact or not alike or not all(name in mixing[0] for name in names):
        why = f"changed by both, and not to be mixed: {kind.name}, with the others {kind.means}"
    elif any(name in norms for name in names):
        why = "changed by both, and mixed running statistics describe no model (--repair none mixes them)"
    else:
        why = ""
    return dict.fromkeys(names, ("" if why else both, why))


def _of_both(
    name: str,
    plans: Mapping[str, Plan],
    ours: Tensors,
    theirs: Tensors,
    both: str,
    norms: Collection[str],
) -> tuple[str, str]:
    """What becomes of a tensor that both changed, and why that is a conflict, "" where it is none."""
    there = [side for side in ("ours", "theirs") if name in plans[side]]
    if both in ("ours", "theirs"):
        return both, ""
    if len(there) == 1:
        return "", f"changed by {there[0]}, removed by {'theirs' if there == ['ours'] else 'ours'}"
    one, other = plans["ours"][name], plans["theirs"][name]
    if name.rpartition(".")[2] == COUNTER and one == other and one[1] == ():
        return ("ours" if ours[name] >= theirs[name] else "theirs"), ""
    since = "changed by both" if name in plans["base"] else "added by both, with other values"
    if both == "conflict":
        return "", since
    if one[1] != other[1]:
        return "", f"{since}: {show(one)} in ours, {show(other)} in theirs"
    if not all(dtype.is_floating_point or dtype.is_complex for dtype, _ in (one, other)):
        return "", f"{since}, and integers cannot be mixed"
    if name in norms:
        return "", f"{since}, and mixed running statistics describe no model (--repair none mixes them)"
    if both == "sum" and plans["base"].get(name, ((), None))[1] != one[1]:
        return "", f"{since}, and no ancestor tells by how much"
    return both, ""


def mixed(
    base: Tensors,
    ours: Tensors,
    theirs: Tensors,
    found: ThreeWay,
    called: Sequence[str] = ("ours", "theirs"),
    step: Callable[[str, int, int | None, str], None] | None = None,
) -> LazyTensors:
    """The tensors of a merge without conflicts, each made when it is asked for; ours decide dtypes.

    One that is mixed and not finite is an error, and `step` is told, as in `tensors.combined`; both sides
    are `called` by their names.
    """
    weights = WEIGHTS["sum" if "sum" in found.taken.values() else "average"]
    joining = [(model, w) for model, w in zip((ours, theirs, base), weights, strict=True) if w]
    shares = [w for _, w in joining]
    products = found.products.joined(
        [model for model, _ in joining], shares, (), lambda views, keep: line(views, shares, keep)
    )
    together = found.products.members
    side_of = {name: theirs if side == "theirs" else ours for name, side in found.taken.items()}
    plan = {name: planned(side, name) for name, side in side_of.items()}

    def made(name: str, take: Callable[[Tensors], Tensor]) -> Tensor:
        if name in together:
            return take(products)
        if (weights := WEIGHTS.get(found.taken[name])) is None:
            return take(side_of[name])
        parts = [(model, w) for model, w in zip((ours, theirs, base), weights, strict=True) if w]
        return mean_of([take(model) for model, _ in parts], [w for _, w in parts], plan[name][0])

    whole = LazyTensors.of(plan, made)
    averaged = {name for name, side in found.taken.items() if side in WEIGHTS}
    return finite_only(whole, averaged, (ours, theirs), called, step)


def merged_text(
    base: Mapping[str, str], ours: Mapping[str, str], theirs: Mapping[str, str]
) -> dict[str, str]:
    """Metadata by the same rule; where both changed an entry, ours stays."""
    found = {}
    for key in dict.fromkeys([*ours, *theirs]):
        kept = theirs if ours.get(key) == base.get(key) else ours
        if key in kept:
            found[key] = kept[key]
    return found
