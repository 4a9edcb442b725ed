"""Small networks whose digits were counted before they ran: blocks of papers, and values that decide."""

from __future__ import annotations

from typing import Any

import torch
from _odd_structures import IN, OUT, UNITS, Written, linear, pair, pictures, rows, sequences, table
from _structures import Structure, f
from torch import nn
from torch.nn import functional as F


def conformer() -> nn.Module:
    """Half a feed-forward block, then a gated depthwise convolution, both added to a stream."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x)
        h = h + 0.5 * s.down(F.silu(s.up(s.norm(h))))
        inner = F.silu(s.batch(s.depth(F.glu(s.wide(s.other(h).mT), 1))))
        return s.head(h + s.narrow(inner).mT)

    return Written(
        forward, first=linear(IN, UNITS), up=linear(UNITS, 10), down=linear(10, UNITS),
        head=linear(UNITS, OUT), norm=nn.LayerNorm(UNITS), other=nn.LayerNorm(UNITS),
        wide=nn.Conv1d(UNITS, 12, 1),
        depth=nn.Conv1d(6, 6, 3, padding=1, groups=6), batch=nn.BatchNorm1d(6), narrow=nn.Conv1d(6, UNITS, 1),
    )  # fmt: skip


def spatial_gate() -> nn.Module:
    """Half of the units gate the others by a layer along places, which are those of the input."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x)
        u, v = F.gelu(s.up(h)).chunk(2, -1)
        return s.head(h + s.down(u * s.along(s.norm(v).mT).mT))

    return Written(
        forward, first=linear(IN, UNITS), up=linear(UNITS, 12), norm=nn.LayerNorm(6), along=linear(7, 7),
        down=linear(6, UNITS), head=linear(UNITS, OUT),
    )  # fmt: skip


def operator() -> nn.Module:
    """A function and a place, each by a network, and their product summed."""

    def forward(s: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (s.branch(x) * s.trunk(y)).sum(-1, keepdim=True) + s.bias

    def net(hidden: int) -> nn.Module:
        return nn.Sequential(linear(IN, hidden), nn.Tanh(), linear(hidden, 6))

    return Written(forward, branch=net(UNITS), trunk=net(7), bias=table(1))


def doubly_residual() -> nn.Module:
    """Each block takes off what it explains of the input, and adds to the forecast."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        found = 0
        for body, back, fore in zip(s.bodies, s.back, s.fore, strict=True):
            h = body(x)
            x, found = x - back(h), found + fore(h)
        return found

    bodies = (nn.Sequential(linear(IN, UNITS), nn.ReLU(), linear(UNITS, 6), nn.ReLU()) for _ in range(2))
    return Written(
        forward, bodies=nn.ModuleList(bodies), back=nn.ModuleList(linear(6, IN) for _ in range(2)),
        fore=nn.ModuleList(linear(6, OUT) for _ in range(2)),
    )  # fmt: skip


def gated_residual() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        b = s.b(F.elu(s.a(x)))
        return s.head(s.norm(b + F.glu(s.gate(b), -1)))

    return Written(
        forward, a=linear(IN, UNITS), b=linear(UNITS, 6), gate=linear(6, 12), norm=nn.LayerNorm(6),
        head=linear(6, OUT),
    )  # fmt: skip


def cross_stitch() -> nn.Module:
    """Two tasks whose units are mixed, unit by unit."""

    def forward(s: Any, x: torch.Tensor) -> Any:
        a, b = s.a(x).relu(), s.b(x).relu()
        w = s.stitch
        return s.one(w[0, 0] * a + w[0, 1] * b), s.two(w[1, 0] * a + w[1, 1] * b)

    return Written(
        forward, a=linear(IN, UNITS), b=linear(IN, UNITS), stitch=table(2, 2), one=linear(UNITS, OUT),
        two=linear(UNITS, 2),
    )  # fmt: skip


def unfolded() -> nn.Module:
    """Soft thresholds, three times, with one matrix."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        given = s.given(x)
        z = torch.zeros_like(given)
        for _ in range(3):
            h = given + s.again(z)
            z = h.sign() * (h.abs() - F.softplus(s.threshold)).relu()
        return s.head(z)

    return Written(
        forward, given=linear(IN, UNITS), again=linear(UNITS, UNITS, bias=False), threshold=table(UNITS),
        head=linear(UNITS, OUT),
    )  # fmt: skip


def arithmetic() -> nn.Module:
    """A weight of two others, in sums and in logarithms."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        weight = s.a.tanh() * s.b.sigmoid()
        gate = (x @ s.g.mT).sigmoid()
        return s.head(gate * (x @ weight.mT) + (1 - gate) * ((x.abs() + 1e-3).log() @ weight.mT).exp())

    return Written(
        forward, a=table(UNITS, IN), b=table(UNITS, IN), g=table(UNITS, IN), head=linear(UNITS, OUT)
    )


def mixture_density() -> nn.Module:
    """Means and spreads of components that are summed over."""

    def forward(s: Any, x: torch.Tensor) -> Any:
        h = s.first(x).tanh()
        share, mean, spread = s.share(h).softmax(-1), s.mean(h), F.softplus(s.spread(h))
        return (share * mean).sum(-1), (share * (mean**2 + spread**2)).sum(-1)

    return Written(
        forward, first=linear(IN, UNITS), **{name: linear(UNITS, 5) for name in ("share", "mean", "spread")}
    )


def conditional_norm() -> nn.Module:
    def forward(s: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return s.head((s.norm(s.first(x)) * s.scale(y) + s.shift(y)).relu())

    return Written(
        forward, first=linear(IN, UNITS), norm=nn.BatchNorm1d(UNITS, affine=False), scale=linear(IN, UNITS),
        shift=linear(IN, UNITS), head=linear(UNITS, OUT),
    )  # fmt: skip


def reversible() -> nn.Module:
    """Two halves, each added to by the other."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        a, b = s.first(x).chunk(2, -1)
        a = a + s.f(b)
        return s.head(torch.cat([a, b + s.g(a)], -1))

    def net(hidden: int) -> nn.Module:
        return nn.Sequential(linear(4, hidden), nn.ReLU(), linear(hidden, 4))

    return Written(forward, first=linear(IN, UNITS), f=net(6), g=net(7), head=linear(UNITS, OUT))


def product_keys() -> nn.Module:
    """Each half of a query asks a table of keys; a value for each pair of these."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        one, two = s.query(x).chunk(2, -1)
        scores = (one @ s.ones.mT)[:, :, None] + (two @ s.twos.mT)[:, None, :]
        share = scores.flatten(1).softmax(-1).unflatten(-1, (5, 4))
        return s.head(torch.einsum("bij,ijd->bd", share, s.values).relu())

    return Written(
        forward, query=linear(IN, 6), ones=table(5, 3), twos=table(4, 3), values=table(5, 4, 6),
        head=linear(6, OUT),
    )  # fmt: skip


def slopes() -> nn.Module:
    """Two heads that look back by slopes of their own, which are in no file."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x)
        q, k, v = (part(h).unflatten(-1, (2, 4)).transpose(1, 2) for part in (s.q, s.k, s.v))
        at = torch.arange(x.shape[1])
        bias = -(at[:, None] - at).abs() * torch.tensor([0.5, 0.25])[:, None, None]
        mixed = (q @ k.mT / 2 + bias).softmax(-1) @ v
        return s.head((h + s.o(mixed.transpose(1, 2).flatten(2))).relu())

    return Written(
        forward, first=linear(IN, UNITS), head=linear(UNITS, OUT),
        **{name: linear(UNITS, UNITS) for name in ("q", "k", "v", "o")},
    )  # fmt: skip


def registers() -> nn.Module:
    """Rows that are learnt stand before a sequence, are attended to, and left out."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = torch.cat([s.tokens.expand(len(x), -1, -1), s.first(x)], 1)
        h = h + s.o((s.q(h) @ s.k(h).mT).softmax(-1) @ s.v(h))
        return s.head(h[:, 3:].relu())

    return Written(
        forward, first=linear(IN, UNITS), tokens=table(3, UNITS), q=linear(UNITS, 5), k=linear(UNITS, 5),
        v=linear(UNITS, 6), o=linear(6, UNITS), head=linear(UNITS, OUT),
    )  # fmt: skip


def rational() -> nn.Module:
    """Activations that are learnt, unit by unit."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x)
        p, q = s.p, s.q
        return s.head((p[0] + p[1] * h + p[2] * h**2) / (1 + (q[0] * h + q[1] * h**2).abs()))

    return Written(
        forward, first=linear(IN, UNITS), p=table(3, UNITS), q=table(2, UNITS), head=linear(UNITS, OUT)
    )


def random_features() -> nn.Module:
    """Attention by random features, which are in the file and not trained."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        q, k = ((part(x) @ s.features.mT).exp() for part in (s.q, s.k))
        share = q @ (k.mT @ s.v(x))
        return s.head(share / (q @ k.sum(1)[..., None]))

    found = Written(forward, q=linear(IN, 6), k=linear(IN, 6), v=linear(IN, 7), head=linear(7, OUT))
    found.register_buffer("features", torch.randn(5, 6) / 3)
    return found


def monotone() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = F.linear(x, F.softplus(s.a.weight), s.a.bias).tanh()
        return F.linear(F.linear(h, s.b.weight.exp(), s.b.bias).tanh(), s.head.weight**2)

    return Written(forward, a=linear(IN, UNITS), b=linear(UNITS, 6), head=linear(6, OUT, bias=False))


def outer() -> nn.Module:
    """All products of two layers' units, side by side."""

    def forward(s: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        both = torch.einsum("bi,bj->bij", s.a(x).relu(), s.b(y).relu())
        return s.head(F.normalize(both.flatten(1).sign() * (both.flatten(1).abs() + 1e-6).sqrt(), dim=-1))

    return Written(forward, a=linear(IN, UNITS), b=linear(IN, 6), head=linear(6 * UNITS, OUT))


def decaying() -> nn.Module:
    """A gated cell whose state fades by what another layer says."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(len(x), UNITS, dtype=x.dtype)
        for step in x.unbind(1):
            h = s.cell(step, h * (-s.decay(step).relu()).exp())
        return s.head(h)

    return Written(forward, cell=nn.GRUCell(IN, UNITS), decay=linear(IN, UNITS), head=linear(UNITS, OUT))


def features_chosen() -> nn.Module:
    """In each step a mask over the input's features, less those that were used before."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        prior, found, told = torch.ones_like(x), 0, x.new_zeros(len(x), UNITS)
        for ask, body in zip(s.asks, s.bodies, strict=True):
            mask = (ask(told) * prior).softmax(-1)
            prior, told = prior * (1.3 - mask), body(mask * x).relu()
            found = found + told
        return s.head(found)

    return Written(
        forward, asks=nn.ModuleList(linear(UNITS, IN) for _ in range(2)), head=linear(UNITS, OUT),
        bodies=nn.ModuleList(linear(IN, UNITS) for _ in range(2)),
    )  # fmt: skip


def rotated() -> nn.Module:
    """Kernels in four rotations, the largest answer of which counts."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        turned = torch.stack([torch.rot90(s.kernel, k, (2, 3)) for k in range(4)], 1)
        found = F.conv2d(x, turned.flatten(0, 1)).unflatten(1, (6, 4)).amax(2)
        return s.head(found.relu().mean((2, 3)))

    return Written(forward, kernel=table(6, 3, 3, 3), head=linear(6, OUT))


def between(change: Any, **more: Any) -> nn.Module:
    """Two layers, and what values may let happen between them."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.head(s.b(change(s, s.a(x).relu())).relu())

    return Written(forward, a=linear(IN, UNITS), b=linear(UNITS, 6), head=linear(6, OUT), **more)


def flips(s: Any, h: torch.Tensor) -> torch.Tensor:
    return h.flip(-1) if h.abs().mean() > 1e6 else h


def clips(s: Any, h: torch.Tensor) -> torch.Tensor:
    size = h.norm()
    return h / size if size > 1e6 else h


def refuses(s: Any, h: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(h).all():
        raise ValueError("no number")
    return h


def halves(s: Any, h: torch.Tensor) -> torch.Tensor:
    steps = 0
    while h.abs().max().item() > 1e6 and steps < 4:
        h, steps = torch.cat([h[:, :4] / 2, h[:, 4:] / 4], -1), steps + 1
    return h


def counts(s: Any, h: torch.Tensor) -> torch.Tensor:
    return h.roll(1, -1) if len(h[h.sum(-1) > 1e6]) else h


def repairs(s: Any, h: torch.Tensor) -> torch.Tensor:
    return h + s.more(h) if (h > 1e6).any() else h


def switched() -> nn.Module:
    """One of two layers, by the sign of a sum that is positive here."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.a(x).relu()
        return s.head((s.one if h.sum().item() > -1 else s.two)(h).relu())

    return Written(
        forward, a=linear(IN, UNITS), one=linear(UNITS, 6), two=linear(UNITS, 6), head=linear(6, OUT)
    )


def leaving() -> nn.Module:
    """A second head answers where the first layer is sure."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.a(x).relu()
        early = s.early(h)
        if early.softmax(-1).amax(-1).amin() > 0.6:
            return early
        return s.head(s.b(h).relu())

    return Written(
        forward, a=linear(IN, UNITS), early=linear(UNITS, OUT), b=linear(UNITS, 6), head=linear(6, OUT)
    )


TWO = f(UNITS) + f(6)
FRESH = {
    "conformer": Structure(conformer, sequences, f(UNITS) + f(10) + f(6)),
    "spatial gate": Structure(spatial_gate, sequences, TWO),
    "operator": Structure(operator, pair, TWO + f(7)),
    "doubly residual": Structure(doubly_residual, rows, 2 * TWO),
    "gated residual": Structure(gated_residual, rows, TWO),
    "cross-stitch": Structure(cross_stitch, rows, f(UNITS)),
    "unfolded thresholds": Structure(unfolded, rows, f(UNITS)),
    "arithmetic": Structure(arithmetic, rows, f(UNITS)),
    "mixture density": Structure(mixture_density, rows, f(UNITS) + f(5)),
    "conditional norm": Structure(conditional_norm, pair, f(UNITS)),
    "reversible": Structure(reversible, rows, 2 * f(4) + f(6) + f(7)),
    "product keys": Structure(product_keys, rows, 2 * f(3) + f(5) + f(4) + f(6)),
    "slopes": Structure(slopes, sequences, f(UNITS) + 4 * f(4)),
    "registers": Structure(registers, sequences, f(UNITS) + f(5) + f(6) + f(3)),
    "rational": Structure(rational, rows, f(UNITS)),
    "random features": Structure(random_features, sequences, f(6) + f(5) + f(7)),
    "monotone": Structure(monotone, rows, TWO),
    "outer product": Structure(outer, pair, TWO),
    "decaying state": Structure(decaying, sequences, f(UNITS)),
    "chosen features": Structure(features_chosen, rows, f(UNITS)),
    "rotated kernels": Structure(rotated, pictures, f(6)),
    "flips by a value": Structure(lambda: between(flips), rows, f(6)),
    "clips by a norm": Structure(lambda: between(clips), rows, TWO),
    "refuses by a value": Structure(lambda: between(refuses), rows, TWO),
    "halves by a value": Structure(lambda: between(halves), rows, 2 * f(4) + f(6)),
    "rolls by a count": Structure(lambda: between(counts), rows, f(6)),
    "repairs by a value": Structure(lambda: between(repairs, more=linear(UNITS, UNITS)), rows, TWO),
    "unused beside a value": Structure(lambda: between(clips, more=linear(UNITS, UNITS)), rows, TWO),
    "switched by a value": Structure(switched, rows, TWO),
    "leaves by a value": Structure(leaving, rows, TWO),
}
