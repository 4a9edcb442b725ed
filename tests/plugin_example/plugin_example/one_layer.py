"""One hidden layer with tanh."""

from __future__ import annotations

import math

import torch
from torch import nn

VARIANTS = ("one-layer",)


class OneLayer(nn.Module):
    def __init__(self, inputs: int, units: int, classes: int):
        super().__init__()
        self.inside, self.outside = nn.Linear(inputs, units), nn.Linear(units, classes)
        self.example_shape = (inputs,)

    def forward(self, x):
        return self.outside(torch.tanh(self.inside(x.flatten(1))))


def build(name, *, input_shape, classes, width=None, norm=None, depth=None):
    return OneLayer(math.prod(input_shape), int(width or 16), classes)


def from_shapes(shapes):
    units, inputs = shapes["inside.weight"]
    return OneLayer(inputs, units, shapes["outside.weight"][0])
