"""Networks of drawn steps: whatever spec is read off them, outputs stay where units change places.

A network is a list of steps, each of which takes what one or two steps before it gave. What is asked of a
spec is asked without the proof: other weights and inputs than the proof draws, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from rebasin_cli.errors import RebasinError
from rebasin_cli.inference import infer
from rebasin_cli.symmetry import permutation

INPUTS, UNITS, CLASSES, WIDEST = 4, 6, 3, 24
BATCH, PLACES = 5, 3
TRIALS, WRONG = 4, 1e-8  # draws of orders and weights; relative to the largest output
Run = Callable[["Step", Tensor, Tensor], Tensor]


class Step(nn.Module):
    """A function of two tensors (…, units), and the layers and parameters that it uses."""

    def __init__(self, run: Run, **used: nn.Module | Tensor) -> None:
        super().__init__()
        for name, its in used.items():
            setattr(self, name, nn.Parameter(its) if isinstance(its, Tensor) else its)
        self.run = run

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.run(self, a, b)


def _plain(run: Callable[[Tensor], Tensor]) -> Callable[[int, int], Step]:
    """A step of one tensor without weights."""
    return lambda c, d: Step(lambda s, a, b: run(a))


def _both(run: Callable[[Tensor, Tensor], Tensor]) -> Callable[[int, int], Step]:
    """A step of two tensors, the second brought to the width of the first."""
    return lambda c, d: Step(
        lambda s, a, b: run(a, s.to_(b)), to_=nn.Linear(d, c) if c != d else nn.Identity()
    )


def _table(run: Callable[[Tensor, Tensor], Tensor], *sizes: int | None) -> Callable[[int, int], Step]:
    """A step of one tensor and one parameter of these sizes; None is as many as there are units."""
    return lambda c, d: Step(
        lambda s, a, b: run(a, s.p), p=torch.randn([c if size is None else size for size in sizes])
    )


def _linears(run: Run, **widths: int | None) -> Callable[[int, int], Step]:
    """A step with linear layers, to so many units each; None is as many as there are."""
    return lambda c, d: Step(run, **{name: nn.Linear(c, width or c) for name, width in widths.items()})


def _first_doubled(a: Tensor) -> Tensor:
    a = a.clone()
    a[..., :1] = 2 * a[..., :1]
    return a


def _tied(s: Step, a: Tensor, b: Tensor) -> Tensor:
    return F.linear(torch.tanh(s.one(a)), s.one.weight.T)


def _heads(s: Step, a: Tensor, b: Tensor) -> Tensor:
    q, k, v = (layer(a).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (s.q, s.k, s.v))
    return a + s.out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(-2))


STEPS: dict[str, Callable[[int, int], Step]] = {
    "linear": _linears(lambda s, a, b: s.one(a), one=UNITS),
    "linear, as wide": _linears(lambda s, a, b: s.one(a), one=None),
    "twice one layer": _linears(lambda s, a, b: s.one(torch.tanh(s.one(a))), one=None),
    "tied and turned": _linears(_tied, one=UNITS),
    "one of two layers": _linears(lambda s, a, b: s.one(a) if a.sum() > 0 else s.two(a), one=None, two=None),
    "attention of one head": _linears(lambda s, a, b: (s.q(a) @ s.k(a).mT).softmax(-1) @ a, q=UNITS, k=UNITS),
    "attention of two heads": lambda c, d: Step(
        _heads, **{name: nn.Linear(c, 8) for name in "qkv"}, out=nn.Linear(8, c)
    ),
    "lstm": lambda c, d: Step(lambda s, a, b: s.cell(a)[0], cell=nn.LSTM(c, UNITS, 2, batch_first=True)),
    "gru": lambda c, d: Step(lambda s, a, b: s.cell(a)[0], cell=nn.GRU(c, UNITS, batch_first=True)),
    "bilinear": lambda c, d: Step(lambda s, a, b: s.one(a, b), one=nn.Bilinear(c, d, UNITS)),
    "layer norm": lambda c, d: Step(lambda s, a, b: s.norm(a), norm=nn.LayerNorm(c)),
    "group norm": lambda c, d: Step(
        lambda s, a, b: s.norm(a.flatten(0, 1)).view_as(a), norm=nn.GroupNorm(1 + (c % 2 == 0), c)
    ),
    "relu": _plain(torch.relu),
    "tanh": _plain(torch.tanh),
    "square": _plain(lambda a: 0.3 * a * a),
    "unit length": _plain(lambda a: F.normalize(a, dim=-1)),
    "softmax": _plain(lambda a: a.softmax(-1)),
    "less the mean": _plain(lambda a: a - a.mean(-1, keepdim=True)),
    "less the largest": _plain(lambda a: a - a.amax(-1, keepdim=True)),
    "running sum": _plain(lambda a: a.cumsum(-1)),
    "running maximum": _plain(lambda a: a.cummax(-1).values),
    "sum of places": _plain(lambda a: a.cumsum(1)),
    "sorted": _plain(lambda a: a.sort(-1).values),
    "largest three": _plain(lambda a: a.topk(min(3, a.shape[-1]), -1).values),
    "kept if large": _plain(lambda a: a * (a >= a.median(-1, keepdim=True).values)),
    "flipped": _plain(lambda a: a + a.flip(-1)),
    "rolled": _plain(lambda a: a * a.roll(1, -1)),
    "half": _plain(lambda a: a[..., : max(1, a.shape[-1] // 2)]),
    "every other": _plain(lambda a: a[..., ::2]),
    "some, in another order": _plain(lambda a: a[..., [*range(a.shape[-1] - 1, -1, -2)]]),
    "twice": _plain(lambda a: torch.cat([a, a], -1)),
    "each twice": _plain(lambda a: a.repeat_interleave(2, -1)),
    "shuffled": _plain(lambda a: a.unflatten(-1, (-1, a.shape[-1] // 2 or 1)).mT.flatten(-2)),
    "padded": _plain(lambda a: F.pad(a, (1, 1))),
    "all pairs": _plain(lambda a: (a[..., None] * a[..., None, :]).flatten(-2)),
    "a part written": _plain(_first_doubled),
    "sum": _both(lambda a, b: a + b),
    "gate": _both(lambda a, b: a * torch.sigmoid(b)),
    "choice": _both(lambda a, b: torch.where(b > 0, a, 0.5 * a)),
    "inner product": _both(lambda a, b: a * (a * b).sum(-1, keepdim=True)),
    "concatenation": lambda c, d: Step(lambda s, a, b: torch.cat([a, b], -1)),
    "a number a unit": _table(lambda a, p: a * p, None),
    "the larger of both": _table(torch.maximum, None),
    "of unit length": _table(lambda a, p: a * p / p.norm(), None),
    "symmetric": _table(lambda a, p: a @ (p + p.T), None, None),
    "squared": _table(lambda a, p: a @ p @ p, None, None),
    "triangle": _table(lambda a, p: a @ p.tril(), None, None),
    "beside the identity": _table(lambda a, p: a @ (torch.eye(len(p), dtype=p.dtype) + p * p), None, None),
    "columns of unit length": _table(lambda a, p: a @ (p / p.norm(dim=0)), None, None),
    "distances": _table(lambda a, p: -(a[..., None, :] - p).square().sum(-1), UNITS, None),
    "cosines": _table(lambda a, p: F.normalize(a, dim=-1) @ F.normalize(p, dim=-1).T, UNITS, None),
    "products": _table(lambda a, p: torch.einsum("...i,...j,ijk->...k", a, a.tanh(), p), None, None, UNITS),
    "row of the largest": _table(lambda a, p: p[a.argmax(-1)] * a.amax(-1, keepdim=True), None, UNITS),
    "mixed places": _table(lambda a, p: torch.einsum("btc,ts->bsc", a, p), PLACES, PLACES),
    "filter over units": _table(
        lambda a, p: F.conv1d(a.flatten(0, 1)[:, None], p, padding=1).view_as(a), 1, 1, 3
    ),
}
DRAWN = st.lists(
    st.tuples(st.sampled_from([*STEPS]), st.integers(1, 3), st.integers(1, 3)), min_size=4, max_size=9
)


class Network(nn.Module):
    """Steps by name, each with how many steps back its inputs are, and a layer for outputs."""

    def __init__(self, drawn: Sequence[tuple[str, int, int]]) -> None:
        super().__init__()
        self.back = [(one, two) for _, one, two in drawn]
        self.steps, self.narrow = nn.ModuleList(), nn.ModuleList()
        given = [example()]
        for (name, _, _), back in zip(drawn, self.back, strict=True):
            a, b = self._taken(given, back)
            step = STEPS[name](a.shape[-1], b.shape[-1])
            width = step(a, b).shape[-1]
            self.steps.append(step)
            self.narrow.append(nn.Linear(width, UNITS) if width > WIDEST else nn.Identity())
            given.append(self.narrow[-1](step(a, b)))
        self.head = nn.Linear(given[-1].shape[-1], CLASSES)
        self.side = nn.Linear(given[-2].shape[-1], CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        given = [x]
        for step, narrow, back in zip(self.steps, self.narrow, self.back, strict=True):
            given.append(narrow(step(*self._taken(given, back))))
        return self.head(given[-1]), self.side(given[-2])

    @staticmethod
    def _taken(given: Sequence[Tensor], back: tuple[int, int]) -> tuple[Tensor, ...]:
        return tuple(given[-min(k, len(given))] for k in back)


def example() -> Tensor:
    return torch.randn(BATCH, PLACES, INPUTS, generator=torch.Generator().manual_seed(0))


def farthest(drawn: Sequence[tuple[str, int, int]]) -> float | None:
    """By how much outputs differ at most where units change places as the spec says; None without a spec."""
    torch.manual_seed(0)
    network = Network(drawn).eval()
    try:
        fitted = infer(network, (example(),)).fitted
    except RebasinError:
        return None
    network, own = network.double(), {n: t.double() for n, t in network.state_dict().items()}
    worst = 0.0
    for trial in range(TRIALS):
        rng = torch.Generator().manual_seed(trial)
        weights = own if trial < 2 else {n: _other(t, rng) for n, t in own.items()}
        orders = permutation.random(fitted.words, rng, within=fitted.within)
        inputs = (1 + trial) * torch.randn(example().shape, generator=rng, dtype=torch.float64)
        with torch.no_grad():
            network.load_state_dict(weights)
            before = network(inputs)
            network.load_state_dict(dict(permutation.permuted(weights, fitted, orders)))
            for one, other in zip(before, network(inputs), strict=True):
                worst = max(worst, float((one - other).abs().max() / one.abs().max()))  # of NaN: as it was
    return worst


def _other(tensor: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype) / max(1, tensor.shape[-1]) ** 0.5
