"""Small networks of odd structures: one of most ideas that papers had, with the digits of each by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _structures import Structure, f
from torch import nn
from torch.nn import functional as F

IN, UNITS, OUT, BATCH = 4, 8, 3, 5


class Written(nn.Module):
    """Layers by name, and `forward` as a function of these and the inputs."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.written = forward

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.written(self, *inputs)


def linear(i: int, o: int, **more: Any) -> nn.Linear:
    return nn.Linear(i, o, **more)


def table(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5)


def rows() -> torch.Tensor:
    return torch.randn(BATCH, IN)


def pair() -> Any:
    return torch.randn(BATCH, IN), torch.randn(BATCH, IN)


def sequences() -> torch.Tensor:
    return torch.randn(2, 7, IN)


def pictures() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8)


def highway() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x).tanh()
        for plain, gate in zip(s.plain, s.gates, strict=True):
            t = gate(h).sigmoid()
            h = t * plain(h).relu() + (1 - t) * h
        return s.head(h)

    layers = {name: nn.ModuleList(linear(UNITS, UNITS) for _ in range(2)) for name in ("plain", "gates")}
    return Written(forward, first=linear(IN, UNITS), head=linear(UNITS, OUT), **layers)


def film() -> nn.Module:
    """Features scaled and shifted by what another network says, both in one tensor."""

    def forward(s: Any, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        scale, shift = s.said(s.other(z).relu()).chunk(2, -1)
        return s.head((s.first(x) * (1 + scale) + shift).relu())

    return Written(
        forward, first=linear(IN, UNITS), other=linear(IN, 6), said=linear(6, 2 * UNITS),
        head=linear(UNITS, OUT),
    )  # fmt: skip


def hyper() -> nn.Module:
    """The weights of the hidden layer are the output of another network."""

    def forward(s: Any, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        weights = s.weights(s.inner(z).relu()).view(-1, UNITS, IN)
        return s.head(torch.einsum("boi,bi->bo", weights, x).relu())

    return Written(forward, inner=linear(IN, 6), weights=linear(6, UNITS * IN), head=linear(UNITS, OUT))


def capsules() -> nn.Module:
    """Capsules with routing by agreement: the units of an inner capsule, and the capsules."""

    def squash(v: torch.Tensor) -> torch.Tensor:
        norm = (v * v).sum(-1, keepdim=True)
        return v * norm / ((1 + norm) * (norm + 1e-9).sqrt())

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        votes = torch.einsum("bni,nmoi->bnmo", squash(s.first(x).view(-1, 5, 4)), s.vote)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            out = squash((logits.softmax(-1)[..., None] * votes).sum(1))
            logits = logits + (votes * out[:, None]).sum(-1)
        return out.norm(dim=-1)

    return Written(forward, first=linear(IN, 20), vote=table(5, OUT, 6, 4))


def adjacency() -> nn.Module:
    def forward(s: Any, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        a = a / a.sum(-1, keepdim=True)
        h = (a @ s.one(x)).relu()
        return s.head((a @ s.two(h) + s.own(h)).relu().mean(-2))

    return Written(
        forward, one=linear(IN, UNITS), two=linear(UNITS, 6), own=linear(UNITS, 6), head=linear(6, OUT)
    )


def graph_attention() -> nn.Module:
    """Attention along edges, by what a vector says of either end."""

    def forward(s: Any, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        h = s.first(x).unflatten(-1, (2, 6)).transpose(-2, -3)
        scores = F.leaky_relu((h * s.left).sum(-1)[..., None] + (h * s.right).sum(-1)[..., None, :])
        weights = scores.masked_fill(a[:, None] < 0.5, -1e9).softmax(-1)
        return s.head((weights @ h).transpose(-2, -3).flatten(-2).relu()).mean(-2)

    return Written(
        forward, first=linear(IN, 12), left=table(2, 1, 6), right=table(2, 1, 6), head=linear(12, OUT)
    )


def scan() -> nn.Module:
    """A selective state space, step by step."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        u, gate = s.into(x).chunk(2, -1)
        u = F.silu(s.conv(u.mT)[..., : x.shape[1]].mT)
        delta, b, c = s.parts(u).split([2, 5, 5], -1)
        delta = F.softplus(s.delta(delta))
        state, out = u.new_zeros(len(x), UNITS, 5), []
        for t in range(x.shape[1]):
            decay = torch.exp(-delta[:, t, :, None] * s.log_a.exp())
            state = decay * state + (delta[:, t] * u[:, t])[..., None] * b[:, t, None]
            out.append((state * c[:, t, None]).sum(-1) + s.skip * u[:, t])
        return s.head(torch.stack(out, 1) * F.silu(gate)).mean(1)

    return Written(
        forward, into=linear(IN, 2 * UNITS), conv=nn.Conv1d(UNITS, UNITS, 3, padding=2, groups=UNITS),
        parts=linear(UNITS, 12), delta=linear(2, UNITS), log_a=table(UNITS, 5), skip=table(UNITS),
        head=linear(UNITS, OUT),
    )  # fmt: skip


def mixer() -> nn.Module:
    """One MLP along patches, one along channels."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.patches(x).flatten(2).mT
        h = h + s.down(s.up(s.norm(h).mT).relu()).mT
        h = h + s.narrow(s.wide(h).relu())
        return s.head(h.mean(1))

    return Written(
        forward, patches=nn.Conv2d(3, UNITS, 2, 2), norm=nn.LayerNorm(UNITS), up=linear(16, 6),
        down=linear(6, 16), wide=linear(UNITS, 10), narrow=linear(10, UNITS), head=linear(UNITS, OUT),
    )  # fmt: skip


def kan() -> nn.Module:
    """A function of its own on each edge: a sum over a basis of bumps."""

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        basis = torch.exp(-((x[..., None] - torch.linspace(-1, 1, 5, dtype=x.dtype)) ** 2))
        return torch.einsum("bik,oik->bo", basis, weight)

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return layer(layer(x, s.one), s.two)

    return Written(forward, one=table(UNITS, IN, 5), two=table(OUT, UNITS, 5))


def euler() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x)
        for step in range(4):
            h = h + 0.25 * s.back(torch.tanh(s.field(torch.cat([h, h.new_full((len(h), 1), step / 4)], -1))))
        return s.head(h)

    return Written(
        forward,
        first=linear(IN, UNITS),
        field=linear(UNITS + 1, 6),
        back=linear(6, UNITS),
        head=linear(UNITS, OUT),
    )


def siamese() -> nn.Module:
    def forward(s: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        u, v = s.net(a), s.net(b)
        return s.head(torch.cat([(u - v).abs(), u * v], -1))

    net = nn.Sequential(linear(IN, 6), nn.ReLU(), linear(6, UNITS))
    return Written(forward, net=net, head=linear(2 * UNITS, OUT))


def cosine() -> nn.Module:
    """Two towers, compared by the angle alone."""

    def forward(s: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        u, v = F.normalize(s.left(a).relu() @ s.a, dim=-1), F.normalize(s.right(b).relu() @ s.b, dim=-1)
        return s.scale.exp() * u @ v.T

    return Written(
        forward, left=linear(IN, UNITS), right=linear(IN, 6), a=table(UNITS, 7), b=table(6, 7), scale=table(1)
    )


def deep_set() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.one(x).relu()
        h = (s.two(h) + s.all(h.max(1, keepdim=True)[0])).relu()
        return s.head(h.sum(1))

    return Written(
        forward,
        one=linear(IN, UNITS),
        two=linear(UNITS, 6),
        all=linear(UNITS, 6, bias=False),
        head=linear(6, OUT),
    )


def set_transformer() -> nn.Module:
    """Points that induce: queries that are learnt, and pooling by attention."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x)
        inner = s.one(s.points.expand(len(x), -1, -1), h, h)[0]
        h = h + s.two(h, inner, inner)[0]
        return s.head(s.pool(s.seed.expand(len(x), -1, -1), h, h)[0].flatten(1))

    names = ("one", "two", "pool")
    attention = {name: nn.MultiheadAttention(UNITS, 2, batch_first=True) for name in names}
    return Written(
        forward,
        first=linear(IN, UNITS),
        points=table(3, UNITS),
        seed=table(1, UNITS),
        head=linear(UNITS, OUT),
        **attention,
    )


def unet() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        a = s.one(x).relu()
        b = s.two(F.max_pool2d(a, 2)).relu()
        c = s.three(F.max_pool2d(b, 2)).relu()
        b = s.four(torch.cat([s.up(c), b], 1)).relu()
        return s.last(torch.cat([F.interpolate(b, scale_factor=2), a], 1))

    def conv(i: int, o: int) -> nn.Module:
        return nn.Conv2d(i, o, 3, padding=1)

    return Written(
        forward, one=conv(3, 4), two=conv(4, 6), three=conv(6, 8), up=nn.ConvTranspose2d(8, 5, 2, 2),
        four=conv(11, 7), last=nn.Conv2d(11, 2, 1),
    )  # fmt: skip


def wavenet() -> nn.Module:
    """Dilated convolutions with gates, and what each adds to the end."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h, end = s.first(x.mT), 0
        for k, (filters, gates, out, skip) in enumerate(
            zip(s.filters, s.gates, s.outs, s.skips, strict=True)
        ):
            padded = F.pad(h, (2**k, 0))
            z = torch.tanh(filters(padded)) * torch.sigmoid(gates(padded))
            h, end = h + out(z), end + skip(z)
        return s.last(s.inner(end.relu()).relu())

    def convs(i: int, o: int, kernel: int) -> nn.ModuleList:
        return nn.ModuleList(nn.Conv1d(i, o, kernel, dilation=2**k if kernel > 1 else 1) for k in range(3))

    return Written(
        forward, first=nn.Conv1d(IN, UNITS, 1), filters=convs(UNITS, 6, 2), gates=convs(UNITS, 6, 2),
        outs=convs(6, UNITS, 1), skips=convs(6, 7, 1), inner=nn.Conv1d(7, 5, 1), last=nn.Conv1d(5, OUT, 1),
    )  # fmt: skip


def squeezed() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.norm(s.conv(x)).relu()
        h = h + h * s.excite(s.squeeze(h.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return s.head(h.amax((2, 3)))

    return Written(
        forward, conv=nn.Conv2d(3, UNITS, 3), norm=nn.BatchNorm2d(UNITS), squeeze=nn.Conv2d(UNITS, 4, 1),
        excite=nn.Conv2d(4, UNITS, 1), head=linear(UNITS, OUT),
    )  # fmt: skip


def coordinates() -> nn.Module:
    """Two channels more, which say where a pixel is."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        side = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
        where = torch.stack(torch.meshgrid(side, side, indexing="ij")).expand(len(x), -1, -1, -1)
        h = s.one(torch.cat([x, where], 1)).relu()
        return s.head(s.two(torch.cat([h, where], 1)).relu().mean((2, 3)))

    return Written(
        forward, one=nn.Conv2d(5, UNITS, 3, padding=1), two=nn.Conv2d(UNITS + 2, 6, 3), head=linear(6, OUT)
    )


def spatial_attention() -> nn.Module:
    """Where to look, by the mean and the largest of all channels."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.one(x).relu()
        seen = torch.cat([h.mean(1, keepdim=True), h.amax(1, keepdim=True)], 1)
        return s.head((h * s.where(seen).sigmoid()).mean((2, 3)))

    return Written(
        forward, one=nn.Conv2d(3, UNITS, 3), where=nn.Conv2d(2, 1, 3, padding=1), head=linear(UNITS, OUT)
    )


def tree() -> nn.Module:
    """A soft tree of decisions: leaves by the way that leads to them, so no node moves."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        p = s.nodes(s.first(x).relu()).sigmoid()
        leaves = torch.stack([p[:, 0] * p[:, 1], p[:, 0] * (1 - p[:, 1]),
                              (1 - p[:, 0]) * p[:, 2], (1 - p[:, 0]) * (1 - p[:, 2])], -1)  # fmt: skip
        return leaves @ s.leaves

    return Written(forward, first=linear(IN, UNITS), nodes=linear(UNITS, 3), leaves=table(4, OUT))


def maxout() -> nn.Module:
    """The largest of three pieces a unit: pieces of one unit have an order of their own."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.head(s.first(x).view(-1, UNITS, 3).amax(-1))

    return Written(forward, first=linear(IN, 3 * UNITS), head=linear(UNITS, OUT))


def radial() -> nn.Module:
    """Distances to centres that are learnt."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.head(torch.exp(-s.sharp * torch.cdist(s.first(x), s.centres) ** 2))

    return Written(
        forward, first=linear(IN, 6), centres=table(UNITS, 6), sharp=table(UNITS), head=linear(UNITS, OUT)
    )


def memory() -> nn.Module:
    """Keys and values in tables, asked by a query."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.head(((s.query(x) @ s.keys.T).softmax(-1) @ s.values).relu())

    return Written(
        forward, query=linear(IN, 6), keys=table(7, 6), values=table(7, UNITS), head=linear(UNITS, OUT)
    )


def codebook() -> nn.Module:
    """The nearest of a table of codes, by number: codes could change places, and stay the same function."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x)
        near = ((h[:, None] - s.codes) ** 2).sum(-1).argmin(-1)
        return s.head(F.embedding(near, s.codes))

    return Written(forward, first=linear(IN, 6), codes=table(7, 6), head=linear(6, OUT))


def spectral() -> nn.Module:
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(linear(IN, UNITS)), nn.ReLU(),
        nn.utils.parametrizations.weight_norm(linear(UNITS, 6)), nn.ReLU(), linear(6, OUT),
    )  # fmt: skip


def low_rank() -> nn.Module:
    """A layer and what adapters add to it."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = (s.first(x) + s.up(s.down(x))).relu()
        return s.head(h) + s.up2(s.down2(h))

    return Written(
        forward, first=linear(IN, UNITS), down=linear(IN, 2, bias=False), up=linear(2, UNITS, bias=False),
        head=linear(UNITS, OUT), down2=linear(UNITS, 2, bias=False), up2=linear(2, OUT, bias=False),
    )  # fmt: skip


def fourier() -> nn.Module:
    """Coordinates as sines and cosines of learnt frequencies, then layers of sines."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        angles = x @ s.frequencies
        h = torch.sin(s.one(torch.cat([angles.sin(), angles.cos()], -1)))
        return s.head(torch.sin(s.two(h)))

    return Written(
        forward, frequencies=table(IN, 5), one=linear(10, UNITS), two=linear(UNITS, 6), head=linear(6, OUT)
    )


def convolutional_lstm() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(len(x), UNITS, *x.shape[-2:])
        for t in range(x.shape[1]):
            i, f_, o, g = s.cell(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = f_.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return s.head(h.mean((2, 3)))

    return Written(forward, cell=nn.Conv2d(2 + UNITS, 4 * UNITS, 3, padding=1), head=linear(UNITS, OUT))


def crossed() -> nn.Module:
    """Crosses with the input, beside a deep part: what is crossed is input and stays."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = x
        for cross in s.crosses:
            h = x * cross(h) + h
        return s.head(torch.cat([h, s.deep(x).relu()], -1))

    return Written(
        forward,
        crosses=nn.ModuleList(linear(IN, IN) for _ in range(2)),
        deep=linear(IN, UNITS),
        head=linear(IN + UNITS, OUT),
    )


def factors() -> nn.Module:
    """A factorisation machine: squares of sums less sums of squares."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        both = (x @ s.v) ** 2 - (x**2) @ (s.v**2)
        return s.line(x) + both.sum(-1, keepdim=True)

    return Written(forward, line=linear(IN, 1), v=table(IN, UNITS))


def relative() -> nn.Module:
    """A Euclidean message: distances of places, and places that move along differences."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        places, h = x[..., :3], s.first(x[..., 3:])
        apart = places[:, :, None] - places[:, None]
        far = (apart**2).sum(-1, keepdim=True)
        n = x.shape[1]
        both = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), far], -1)
        sent = s.message(both).relu()
        places = places + (apart * s.along(sent)).mean(2)
        return torch.cat([places, s.head(h + s.update(sent.sum(2)))], -1)

    return Written(
        forward, first=linear(1, UNITS), message=linear(2 * UNITS + 1, 6), along=linear(6, 1),
        update=linear(6, UNITS), head=linear(UNITS, OUT),
    )  # fmt: skip


def pointer() -> nn.Module:
    """Which of its inputs comes next: attention that is the output."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        out, (h, _) = s.rnn(x)
        return s.v((s.own(out) + s.last(h[-1])[:, None]).tanh()).squeeze(-1).log_softmax(-1)

    return Written(
        forward, rnn=nn.LSTM(IN, UNITS, batch_first=True), own=linear(UNITS, 6),
        last=linear(UNITS, 6, bias=False), v=linear(6, 1, bias=False),
    )  # fmt: skip


def variational() -> nn.Module:
    """Encoder, mean and logarithm of the variance, decoder; in evaluation the mean."""

    def forward(s: Any, x: torch.Tensor) -> Any:
        h = s.encode(x).relu()
        mean, log = s.mean(h), s.log(h)
        return s.out(s.decode(mean).relu()), 0.5 * (mean**2 + log.exp() - 1 - log).sum(-1)

    return Written(
        forward,
        encode=linear(IN, UNITS),
        mean=linear(UNITS, 5),
        log=linear(UNITS, 5),
        decode=linear(5, 6),
        out=linear(6, IN),
    )


def dense_block() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x)
        for norm, conv in zip(s.norms, s.convs, strict=True):
            h = torch.cat([h, conv(norm(h).relu())], 1)
        return s.head(h.mean((2, 3)))

    widths = [4, 7, 10]
    return Written(
        forward, first=nn.Conv2d(3, 4, 3), norms=nn.ModuleList(nn.BatchNorm2d(n) for n in widths),
        convs=nn.ModuleList(nn.Conv2d(n, 3, 3, padding=1) for n in widths), head=linear(13, OUT),
    )  # fmt: skip


def perceiver() -> nn.Module:
    """Latents that read all pixels: none of the latents is another's like, and all are summed at the end."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        tokens = s.first(x.flatten(2).mT)
        h = s.latents.expand(len(x), -1, -1)
        for _ in range(2):
            h = h + s.read(h, tokens, tokens)[0]
            h = h + s.back(F.gelu(s.into(s.norm(h))))
        return s.head(h.mean(1))

    return Written(
        forward, first=linear(3, UNITS), latents=table(4, UNITS),
        read=nn.MultiheadAttention(UNITS, 2, batch_first=True), norm=nn.LayerNorm(UNITS),
        into=linear(UNITS, 6), back=linear(6, UNITS), head=linear(UNITS, OUT),
    )  # fmt: skip


def early_exit() -> nn.Module:
    """The first answer where it is sure, else the second, sample by sample."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x).relu()
        soon = s.soon(h)
        sure = soon.softmax(-1).amax(-1, keepdim=True) > 0.5
        return torch.where(sure, soon, s.late(s.more(h).relu()))

    return Written(
        forward, first=linear(IN, UNITS), soon=linear(UNITS, OUT), more=linear(UNITS, 6), late=linear(6, OUT)
    )


def weighed_rows() -> nn.Module:
    """Only rows that a gate lets through are computed, and put back."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x).relu()
        chosen = s.gate(h).squeeze(-1) > 0
        out = torch.zeros_like(h)
        out[chosen] = s.more(h[chosen]).relu()
        return s.head(h + out)

    return Written(
        forward,
        first=linear(IN, UNITS),
        gate=linear(UNITS, 1),
        more=linear(UNITS, UNITS),
        head=linear(UNITS, OUT),
    )


# ------------------------------------------------------------------------------- more, counted and then run


def _two(between: Callable[[Any, torch.Tensor], torch.Tensor], **layers: Any) -> nn.Module:
    """A layer, what comes between, another one, and a head."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.head(s.more(between(s, s.first(x).relu())).relu())

    own = {"first": linear(IN, UNITS), "more": linear(UNITS, 6), "head": linear(6, OUT)}
    return Written(forward, **(own | layers))


def temporal_shift() -> nn.Module:
    """Of the channels of a sequence some come a step late, some a step early."""
    return _two(lambda s, h: torch.cat([h[..., :2].roll(1, 1), h[..., 2:4].roll(-1, 1), h[..., 4:]], -1))


def sorted_pool() -> nn.Module:
    """Each feature of a set is sorted by itself, and weighed by rank."""
    return _two(lambda s, h: (h.sort(1).values * s.ranks).sum(1), ranks=table(7, UNITS))


def trimmed() -> nn.Module:
    return _two(lambda s, h: h.sort(1).values[:, 2:5].mean(1) + h.median(1).values)


def winners() -> nn.Module:
    """Only the largest units of a sample count."""
    return _two(lambda s, h: h * (h >= h.topk(3).values[..., -1:]))


def shifted() -> nn.Module:
    """Units beside those that stand three places before."""
    return _two(lambda s, h: h.roll(3, -1).tanh())


def linear_units() -> nn.Module:
    return _two(lambda s, h: F.glu(s.wide(h)), wide=linear(UNITS, 2 * 5), more=linear(5, 6))


def reservoir() -> nn.Module:
    """A recurrent matrix that nobody trains, kept in the file."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(len(x), UNITS)
        for step in x.unbind(1):
            h = (h @ s.echo.mT + s.first(step)).tanh()
        return s.head(h)

    network = Written(forward, first=linear(IN, UNITS), head=linear(UNITS, OUT))
    network.register_buffer("echo", torch.randn(UNITS, UNITS) / UNITS)
    return network


def slots() -> nn.Module:
    """Slots compete for the steps of a sequence, and are updated by a gated unit."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        held = s.slots.expand(len(x), -1, -1)
        for _ in range(2):
            shares = (s.queries(held) @ s.keys(x).mT).softmax(1)
            new = (shares / shares.sum(-1, keepdim=True)) @ s.values(x)
            held = s.cell(new.flatten(0, 1), held.flatten(0, 1)).view_as(held)
        return s.head(held.relu()).sum(1)

    return Written(
        forward, slots=table(3, UNITS), queries=linear(UNITS, 6), keys=linear(IN, 6), values=linear(IN, 5),
        cell=nn.GRUCell(5, UNITS), head=linear(UNITS, OUT),
    )  # fmt: skip


def additive() -> nn.Module:
    """A network for each feature, added up."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([part(x[:, k : k + 1]) for k, part in enumerate(s.parts)]).sum(0)

    return Written(
        forward,
        parts=nn.ModuleList(nn.Sequential(linear(1, 6), nn.ReLU(), linear(6, OUT)) for _ in range(IN)),
    )


def ensemble() -> nn.Module:
    """Networks side by side, whose answers are averaged."""
    parts = nn.ModuleList(nn.Sequential(linear(IN, 6), nn.ReLU(), linear(6, OUT)) for _ in range(3))
    return Written(lambda s, x: torch.stack([part(x) for part in s.parts]).mean(0), parts=parts)


def tucker() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("abco,na,nb,nc->no", s.core, s.a(x).tanh(), s.b(x).tanh(), s.c(x).tanh())

    return Written(forward, core=table(5, 6, 7, OUT), a=linear(IN, 5), b=linear(IN, 6), c=linear(IN, 7))


def mobile() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.norm(s.slopes(s.first(x)))
        return s.head(s.point(s.depth(h)).relu().mean((2, 3)))

    return Written(
        forward, first=nn.Conv2d(3, UNITS, 3), slopes=nn.PReLU(UNITS),
        norm=nn.InstanceNorm2d(UNITS, affine=True), depth=nn.Conv2d(UNITS, UNITS, 3, groups=UNITS),
        point=nn.Conv2d(UNITS, 6, 1), head=linear(6, OUT),
    )  # fmt: skip


def hopfield() -> nn.Module:
    return _two(lambda s, h: (2 * h @ s.stored.mT).softmax(-1) @ s.stored, stored=table(7, UNITS))


def linear_attention() -> nn.Module:
    def between(s: Any, h: torch.Tensor) -> torch.Tensor:
        q, k, v = F.elu(s.q(h)) + 1, F.elu(s.k(h)) + 1, s.v(h)
        seen = q @ (k.mT @ v) / (q @ k.sum(1).unsqueeze(-1))
        return h + s.out(seen)

    own = {"q": linear(UNITS, 7), "k": linear(UNITS, 7), "v": linear(UNITS, 5), "out": linear(5, UNITS)}
    return _two(between, **own)


def complex_layers() -> nn.Module:
    """Real and imaginary parts by two matrices each; what is read are moduli."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        real, imaginary = s.a(x), s.b(x)
        real, imaginary = s.c(real) - s.d(imaginary), s.c(imaginary) + s.d(real)
        return s.head((real.square() + imaginary.square() + 0.1).sqrt())

    own = {"a": linear(IN, UNITS), "b": linear(IN, UNITS)}
    own |= {name: linear(UNITS, 6, bias=False) for name in "cd"}
    return Written(forward, head=linear(6, OUT), **own)


def kronecker() -> nn.Module:
    """A layer that is a product of two small matrices, on units that are a table."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        h = s.first(x).tanh().unflatten(-1, (2, 4))
        return s.head(torch.einsum("nij,ki,lj->nkl", h, s.outer, s.inner).tanh().flatten(1))

    return Written(
        forward, first=linear(IN, UNITS), outer=table(3, 2), inner=table(5, 4), head=linear(15, OUT)
    )


def _graph() -> Any:
    return torch.randn(2, 6, IN), torch.rand(2, 6, 6)


HEAD = 2 * f(UNITS // 2) * 2 + f(2)  # of attention: two heads, keys and values of four units in each
ODD = {
    "highway": Structure(highway, rows, f(UNITS)),
    "FiLM": Structure(film, pair, f(UNITS) + f(6)),
    "hypernetwork": Structure(hyper, pair, f(UNITS) + f(6)),
    "capsules": Structure(capsules, rows, f(5) + 5 * f(4) + 3 * f(6)),
    "graph by adjacency": Structure(adjacency, _graph, f(UNITS) + f(6)),
    "graph attention": Structure(graph_attention, _graph, f(2) + 2 * f(6)),
    "selective scan": Structure(scan, sequences, f(UNITS) + f(2) + f(5)),
    "mixer": Structure(mixer, pictures, f(UNITS) + f(6) + f(10)),
    "KAN": Structure(kan, rows, f(UNITS)),
    "neural ODE": Structure(euler, rows, f(UNITS) + f(6)),
    "siamese": Structure(siamese, pair, f(UNITS) + f(6)),
    "two towers": Structure(cosine, pair, f(UNITS) + f(6) + f(7)),
    "deep set": Structure(deep_set, sequences, f(UNITS) + f(6)),
    "set transformer": Structure(set_transformer, sequences, 2 * f(UNITS) + f(3) + 3 * HEAD),
    "U-Net": Structure(unet, pictures, sum(map(f, (4, 6, 8, 5, 7)))),
    "WaveNet": Structure(wavenet, sequences, f(UNITS) + 3 * f(6) + f(7) + f(5)),
    "squeeze and excitation": Structure(squeezed, pictures, f(UNITS) + f(4)),
    "coordinates": Structure(coordinates, pictures, f(UNITS) + f(6)),
    "spatial attention": Structure(spatial_attention, pictures, f(UNITS)),
    "soft tree": Structure(tree, rows, f(UNITS)),
    "maxout": Structure(maxout, rows, f(UNITS) + UNITS * f(3)),
    "radial basis": Structure(radial, rows, f(UNITS) + f(6)),
    "memory": Structure(memory, rows, f(UNITS) + f(6) + f(7)),
    "codebook": Structure(codebook, rows, f(7) + f(6)),
    "spectral and weight norm": Structure(spectral, rows, f(UNITS) + f(6)),
    "low rank": Structure(low_rank, rows, f(UNITS) + 2 * f(2)),
    "Fourier features": Structure(fourier, rows, f(UNITS) + f(6) + f(5)),
    "convolutional LSTM": Structure(convolutional_lstm, lambda: torch.randn(2, 3, 2, 6, 6), f(UNITS)),
    "crosses": Structure(crossed, rows, f(UNITS)),
    "factorisation machine": Structure(factors, rows, f(UNITS)),
    "Euclidean messages": Structure(relative, lambda: torch.randn(2, 5, 4), f(UNITS) + f(6)),
    "pointer": Structure(pointer, sequences, f(UNITS) + f(6)),
    "variational": Structure(variational, rows, f(UNITS) + f(5) + f(6)),
    "dense block": Structure(dense_block, pictures, f(4) + 3 * f(3)),
    "perceiver": Structure(perceiver, pictures, f(UNITS) + f(4) + HEAD + f(6)),
    "early exit": Structure(early_exit, rows, f(UNITS) + f(6)),
    "rows that a gate chooses": Structure(weighed_rows, rows, f(UNITS)),
    "temporal shift": Structure(temporal_shift, sequences, 2 * f(2) + f(4) + f(6)),
    "sorted pool": Structure(sorted_pool, sequences, f(UNITS) + f(6)),
    "trimmed mean": Structure(trimmed, sequences, f(UNITS) + f(6)),
    "winners": Structure(winners, rows, f(UNITS) + f(6)),
    "shifted units": Structure(shifted, rows, f(UNITS) + f(6)),  # the second layer's in an order of theirs
    "gated linear units": Structure(linear_units, rows, f(UNITS) + f(5) + f(6)),
    "reservoir": Structure(reservoir, sequences, f(UNITS)),
    "slots": Structure(slots, sequences, f(UNITS) + f(6) + f(5) + f(3)),
    "additive": Structure(additive, rows, IN * f(6)),
    "ensemble": Structure(ensemble, rows, 3 * f(6) + f(3)),
    "Tucker": Structure(tucker, rows, f(5) + f(6) + f(7)),
    "depthwise": Structure(mobile, pictures, f(UNITS) + f(6)),
    "Hopfield": Structure(hopfield, rows, f(UNITS) + f(7) + f(6)),
    "linear attention": Structure(linear_attention, sequences, f(UNITS) + f(7) + f(5) + f(6)),
    "complex layers": Structure(complex_layers, rows, f(UNITS) + f(6)),
    "Kronecker": Structure(kronecker, rows, f(2) + f(4) + f(3) + f(5)),
}
