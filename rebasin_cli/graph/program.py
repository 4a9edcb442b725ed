"""A network as a graph of operations, and what its placeholders and results are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputSpec, OutputSpec

from .answers import Answers


@dataclass(frozen=True)
class Program:
    """A graph without side effects; its placeholders are parameters, buffers, constants and inputs.

    Every node's `meta["val"]` has the shape and type of its value (several, where there are several), and no
    numbers. `inputs` and `outputs` say what placeholders and results are, one each; `constants` are tensors
    that no state dict has, by name; `buffers` are the network's, these among them; `returned` is what the
    network returned, with tensors of no meaning: one output of the user's for each of them, in the order of
    `leaves_of`; `examples` are the arguments that it was traced with. Where it is not `general` it holds for
    values that decide alike only: what the network looked at is among its outputs, as tokens. `others` are of
    other weights and `answers` then, where more may have run; `certain` tells whether that is all there is.
    """

    graph_module: fx.GraphModule
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    constants: Mapping[str, Any]
    buffers: Mapping[str, torch.Tensor]
    returned: Any
    examples: tuple[tuple[Any, ...], dict[str, Any]]
    general: bool = True
    answers: Answers = field(default_factory=Answers)
    others: tuple[Program, ...] = ()
    certain: bool = False

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph


def placeholders(program: Program) -> list[fx.Node]:
    """Its placeholders, in the order of `inputs`."""
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def exported(program: torch.export.ExportedProgram, returned: Any) -> Program:
    """What PyTorch's exporter made of a network that `returned` this, as tensors in a row."""
    signature = program.graph_signature
    return Program(
        graph_module=program.graph_module,
        inputs=tuple(signature.input_specs),
        outputs=tuple(signature.output_specs),
        constants=dict(program.constants),
        buffers=dict(program.named_buffers()),
        returned=returned,
        examples=program.example_inputs or ((), {}),
    )
