"""Small networks of structures that usual ones do not have, each with its inputs and its digits by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import rnn

LAYERS, UNITS, READ = 3, 8, 4


def f(n: int) -> float:
    """log10(n!)"""
    return math.lgamma(n + 1) / math.log(10)


class States(nn.Module):
    """A recurrent network of which `read` takes the last states."""

    def __init__(self, kind: Callable[..., nn.Module], read: Callable[..., torch.Tensor], **more: Any):
        super().__init__()
        self.read, self.rnn = read, kind(READ, UNITS, num_layers=LAYERS, batch_first=True, **more)
        with torch.no_grad():
            self.head = nn.Linear(self.states(torch.zeros(2, 2, READ)).shape[-1], 3)

    def states(self, x: torch.Tensor) -> torch.Tensor:
        states = self.rnn(x)[1]
        return self.read(*states) if isinstance(states, tuple) else self.read(states)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.states(x))


class Packed(nn.Module):
    """Sequences of several lengths; outputs and last states are added."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(READ, UNITS, num_layers=2, batch_first=True), nn.Linear(UNITS, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, last = self.rnn(packed)
        return self.head(rnn.pad_packed_sequence(out, batch_first=True)[0].mean(1) + last[-1])


class Bilinear(nn.Module):
    """Two inner layers that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(READ, 8), nn.Linear(READ, 6), nn.Linear(7, 3)
        self.both = nn.Bilinear(8, 6, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.both(self.left(x).relu(), self.right(x).relu()).relu())


class Stepping(nn.Module):
    """One layer to be applied several times, between a first and a last one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.step, self.head = (
            nn.Linear(READ, UNITS),
            nn.Linear(UNITS, UNITS),
            nn.Linear(UNITS, 3),
        )


class FixedPoint(Stepping):
    """A layer that is applied until it changes little."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.first(x)
        state = torch.zeros_like(given)
        for _ in range(20):
            new = torch.tanh(0.3 * self.step(state) + given)
            if (new - state).norm() < 1e-2:
                break
            state = new
        return self.head(state)


class Halting(Stepping):
    """As many steps as a unit of its own asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = nn.Linear(UNITS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.first(x).relu()
        for _ in range(4):
            if torch.sigmoid(self.stop(state)).mean().item() > 0.9:
                break
            state = state + self.step(state).relu()
        return self.head(state)


class Loop(nn.Module):
    """Experts that are called in a loop, each with the rows that picked it."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(READ, experts, bias=False), nn.Linear(READ, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(READ, UNITS), nn.ReLU(), nn.Linear(UNITS, READ)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, ids = self.gate(x).softmax(-1).topk(2, -1)
        picked = nn.functional.one_hot(ids, len(self.experts)).permute(2, 1, 0)
        found = torch.zeros_like(x)
        for expert, mask in zip(self.experts, picked, strict=True):
            place, row = torch.where(mask)
            if len(row):
                found.index_add_(0, row, expert(x[row]) * weights[row, place, None])
        return self.head(x + found)


class Repeated(nn.Module):
    """Each row as often as another part of the network says, as speech from text does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.often = nn.Linear(READ, UNITS), nn.Linear(UNITS, 3), nn.Linear(READ, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = self.often(x).exp().round().clamp(1, 3).long().squeeze(-1)
        return self.head(self.first(x).relu().repeat_interleave(counts, 0)).mean(0, keepdim=True)


class Messages(nn.Module):
    """A graph network: messages along edges, added up at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.message = nn.Linear(READ, UNITS), nn.Linear(2 * UNITS, 6)
        self.update, self.head = nn.GRUCell(6, UNITS), nn.Linear(UNITS, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        nodes, (start, end) = self.first(x).relu(), edges
        for _ in range(2):
            sent = self.message(torch.cat([nodes[start], nodes[end]], -1)).relu()
            nodes = self.update(torch.zeros(len(x), 6, dtype=x.dtype).index_add(0, end, sent), nodes)
        return self.head(nodes)


class Language(nn.Module):
    """An embedding that is also the head, and a switch of what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.out = nn.Embedding(9, UNITS), nn.Linear(UNITS, 6), nn.Linear(6, UNITS)
        self.head = nn.Linear(UNITS, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.out(self.inner(self.embed(ids)).relu()))


@dataclass(frozen=True)
class Structure:
    """How a network and its inputs are made; `digits` are those of its symmetries, counted by hand."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    digits: float


def _sequences() -> torch.Tensor:
    return torch.randn(2, 3, READ)


def _rows() -> torch.Tensor:
    return torch.randn(4, READ)


def _last_two(h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.cat([h[-2], h[-1]], -1)


def _by_direction(h: torch.Tensor) -> torch.Tensor:
    return h.view(LAYERS, 2, len(h[0]), UNITS).sum(1)[-1]


STRUCTURES = {
    "GRU by its last state": Structure(
        lambda: States(nn.GRU, lambda h: h[-1]), _sequences, LAYERS * f(UNITS)
    ),
    "LSTM by its last states": Structure(
        lambda: States(nn.LSTM, _last_two, bidirectional=True), _sequences, 2 * LAYERS * f(UNITS)
    ),
    "LSTM with projections": Structure(
        lambda: States(nn.LSTM, lambda h, c: h[-1], proj_size=5), _sequences, LAYERS * (f(UNITS) + f(5))
    ),
    "LSTM by all its states": Structure(
        lambda: States(nn.LSTM, lambda h, c: torch.cat([h, c], -1).transpose(0, 1).flatten(1)),
        _sequences,
        LAYERS * f(UNITS),
    ),
    "directions added": Structure(
        lambda: States(nn.RNN, _by_direction, bidirectional=True), _sequences, LAYERS * f(UNITS)
    ),  # both directions of a layer have one order
    "packed sequences": Structure(
        Packed, lambda: (torch.randn(3, 5, READ), torch.tensor([3, 5, 2])), 2 * f(UNITS)
    ),
    "bilinear": Structure(Bilinear, _rows, f(8) + f(6) + f(7)),
    "fixed point": Structure(FixedPoint, _rows, f(UNITS)),
    "halting": Structure(Halting, _rows, f(UNITS)),
    "experts in a loop": Structure(Loop, lambda: torch.randn(8, READ), f(3) + 3 * f(UNITS)),
    "repeated rows": Structure(Repeated, _rows, f(UNITS)),
    "messages": Structure(
        Messages, lambda: (_rows(), torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])), f(UNITS) + f(6)
    ),
    "tied head": Structure(Language, lambda: torch.tensor([[0, 3, 5], [8, 1, 2]]), f(UNITS) + f(6)),
}
