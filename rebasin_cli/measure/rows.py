"""The rows of a barrier report, one after the other: what lies on each path, repaired or not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from .. import networks
from ..averages.means import interpolate
from ..networks.answers import Recording
from ..networks.attacks import Attack, attacked
from ..networks.evaluation import Scores
from ..repair import Repairs
from ..repair.calibration import Scaled
from ..repair.choices import Choice
from ..reports import Row
from ..runtime.ranks import ALONE
from ..runtime.seeds import generator
from ..symmetry import elements as acts
from ..symmetry import permutation
from ..symmetry.permutation import permuted
from ..types import Permutations, Tensors
from . import paths
from .controls import Control, Ensemble, fine_tuned
from .ready import Ready
from .settings import DRAWN, ENSEMBLE, FINE_TUNED, PERMUTED, RANDOM, TOGETHER, Planned, Rows


@dataclass(frozen=True)
class Measuring:
    """What lies at λ = 1 of each row (`others`, by base), how each is repaired, and what is known by now.

    `starts` are what lies at λ = 0 where that is not A as it was given: its canonical form.

    `middles` are the test scores at λ = ½ by row; `scaled` holds rows that others gave on their way: their
    scores there and details.
    """

    ready: Ready
    rows: Rows
    others: Mapping[str, Tensors]
    repairs: Mapping[str, Repairs]
    resets: Repairs
    starts: Mapping[str, Tensors] = field(default_factory=dict)
    middles: dict[str, Scores] = field(default_factory=dict)
    scaled: dict[str, tuple[dict[str, Scores], Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        ready: Ready,
        rows: Rows,
        standing: Sequence[Tensors] | None,
        order: Permutations | None = None,
    ) -> Measuring:
        """B as it is, aligned, permuted at random, and at the ends of curves.

        `standing` are both models as an alignment left them, `order` is the best order alone beside it.
        """
        starts: dict[str, Tensors] = {}
        (a, b), fitted = ready.models, ready.fitted
        others: dict[str, Tensors] = {"naive": b, ENSEMBLE: b, FINE_TUNED: b}
        if standing is not None:
            form, others["aligned"] = standing
            rng, plain = generator(ready.seed, "random permutation"), fitted.ordered
            random = permutation.random(plain.words, rng, within=plain.within)
            others[RANDOM] = permuted(b, plain, random)
            drawn = acts.random(fitted, generator(ready.seed, "random group element"))
            others[DRAWN] = acts.acted(others["aligned"], fitted, drawn)
            starts |= {"aligned": form, DRAWN: form}
        if order is not None:
            others[PERMUTED] = permuted(b, fitted.ordered, order)
        device = ready.device
        graphs: dict[Any, Any] = {}  # the network is traced once for all rows
        repairs = {
            base: Repairs(
                ready.word, [starts.get(base, a), other], ready.batches, ridge=rows.ridge,
                output=ready.output, device=device, share=ready.share, logits=ready.logits,
                known={"graphs": graphs}, scores=ready.scores,
            )
            for base, other in others.items()
            if ready.word
        }  # fmt: skip
        for name, curve in rows.curves.items():
            starts[name], others[name] = curve.a, curve.b
            if ready.statistics:
                repairs[name] = Repairs("reset", [curve.a, curve.b], ready.batches, device=device)
        resets = Repairs("reset", [], ready.batches, device=device)
        return cls(ready, rows, others, repairs, resets, starts)

    @property
    def join(self) -> Callable[..., Tensors]:
        """The path between two models."""
        if self.rows.interpolation == "linear":
            return interpolate
        straight = self.ready.fitted.statistics
        return functools.partial(interpolate, interpolation=self.rows.interpolation, straight=straight)

    def choose(self) -> Choice:
        """Whether the merge is repaired, by held-out samples."""
        ready, best = self.ready, "aligned" if "aligned" in self.others else "naive"
        middle = self.join(
            self.starts.get(best, ready.models[0]), self.others[best], 0.5, keep=ready.fitted.ignored
        )
        networks.load(ready.network, middle)
        return replace(self.repairs[best], scores=ready.scores, by=self.rows.choose).choose(
            ready.network,
            [0.5, 0.5],
            ready.judged_by,
            output=ready.output,
            apart=ready.apart,
            unseen=ready.unseen,
        )[0]

    def measure(self, plan: Sequence[Planned], progress: Callable[[], None]) -> list[Row]:
        """All rows of the plan, in its order."""
        return [self._row(row, plan, progress) for row in plan]

    def _row(self, row: Planned, plan: Sequence[Planned], progress: Callable[[], None]) -> Row:
        ready, hot = self.ready, next((o.name for o in plan if o.temperature and _same(o, row)), "")
        details = {"attack": row.attack.account()} if row.attack else {}
        turning = self.rows.interpolation != "linear"
        path = paths.Path(
            row.name,
            self.starts.get(row.base, ready.models[0]),
            self.others[row.base],
            row.points,
            self.repairs[row.base] if row.repaired else self.resets if row.resets else None,
            ready.fitted.ignored,
            shipped=row.shipped,
            control=row.control,
            wrap=self._wrapping(row),
            record=functools.partial(self._recorded, hot) if hot and not row.temperature else None,
            details=self.scaled[row.name][1] if row.name in self.scaled else details,
            curve=None if row.ensemble else self.rows.curves.get(row.base),
            join=interpolate if row.straight else self.join,
            ends=row.ends,
            repaired=ready.repaired if row.base == "aligned" and row.repaired and not turning else None,
        )
        known = {} if row.ends else {0.0: ready.ends[0], 1.0: ready.ends[1]}
        if row.attack:
            splits = self._under(row.attack)
            return paths.measure(
                path, ready.network, splits, known={}, scores=ready.scores, progress=progress, ends=ready.ends
            )
        if row.name in self.scaled:
            known[0.5] = self.scaled[row.name][0]
        if row.base == "aligned" and not (row.repaired or row.temperature or row.straight):
            del known[1.0]
        return paths.measure(
            path,
            ready.network,
            ready.splits,
            known=known,
            scores=ready.scores,
            progress=progress,
            ends=ready.ends,
            at_middle=lambda here: self.middles.update({row.name: here["test"]}),
        )

    def _points(self, base: str, network: nn.Module) -> Iterator[Tensors]:
        """The models of a curve that its ensemble asks, inner ones with statistics of their own."""
        for t in TOGETHER:
            networks.load(network, self.rows.curves[base].at(t))
            if base in self.repairs and 0 < t < 1:
                self.repairs[base].apply(network, [1 - t, t])
            yield {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def _under(self, attack: Attack) -> dict[str, Any]:
        """The samples of every split, or some of them, attacked."""
        ready, few = self.ready, self.rows.attacked
        how = {"output": ready.output, "seed": ready.seed}
        splits: Mapping[str, Any] = ready.given  # an attack takes data sets only (`Attacker`)
        given = {s: its if few is None else its.subset(few, ready.seed) for s, its in splits.items()}
        return {split: attacked(its, ready.network, attack, **how) for split, its in given.items()}

    def _recorded(self, name: str, network: nn.Module) -> nn.Module:
        """The network at λ = ½, whose outputs the row of this name is measured by, too."""
        ready = self.ready
        known = Recording(network, ready.output)
        heated = Scaled(known, ready.judged_by, None, ready.device)
        tests = {s: ready.scores(heated, its, each=True, output=None) for s, its in ready.splits.items()}
        self.scaled[name] = tests, heated.details
        return known

    def _wrapping(self, row: Planned) -> Callable[[nn.Module], Control] | None:
        """What is measured in the network's place."""
        ready, k = self.ready, self.ready.better
        if row.base == ENSEMBLE:
            return lambda network: Ensemble(network, ready.models, ready.output, ready.answers)
        if row.ensemble:
            return lambda network: Ensemble(network, self._points(row.base, network), ready.output)
        if row.temperature:
            return lambda network: Scaled(network, ready.judged_by, ready.output, ready.device)
        if row.base == FINE_TUNED:
            return lambda network: fine_tuned(
                network,
                ready.models[k],
                "AB"[k],
                ready.measured_on,
                output=ready.output,
                device=ready.device,
                seed=ready.seed,
                word=ready.word,
                share=ready.share,
                ranks=getattr(ready.scores, "ranks", ALONE),
            )
        return None


def _same(one: Planned, other: Planned) -> bool:
    """Whether two rows are of the same networks."""
    return (one.base, one.repaired, one.straight) == (other.base, other.repaired, other.straight)
