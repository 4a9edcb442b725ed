"""What is written into a part of a tensor is in the graph, and all that shows that part."""

import pytest
import torch
from torch import fx, nn

from rebasin_cli.graph import dispatched, tracing
from tests.inference.test_infer import Net

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def a_slice(y):
    y[:, :3] = y[:, 3:] * 2
    return y


def one_row_and_column(y):
    y[:, -1] = 0
    z = y[0]
    z.add_(1)
    return y, z


def every_second(y):
    y[:, ::2] *= 3
    return y


def transposed(y):
    z = y.t()
    z[0].mul_(2)
    w = y.transpose(0, 1)[1:3]
    w += 1
    return y, z, w


def other_axes(y):
    z = y.view(3, 2, 6)
    z[1].zero_()
    w = z.permute(2, 0, 1)
    w[0] = 1
    y[0] = 7
    return y, z, w


def pieces(y):
    a, b = y.chunk(2, 1)
    a.mul_(b)
    b.add_(a)
    first, *_ = y.unbind(1)
    first += 1
    return y, a, b, first


def of_lengths(y):
    a, b = y.split([2, 4], 1)
    b.mul_(2)
    a.copy_(b[:, :2])
    return y, a, b


def the_diagonal(y):
    y.diagonal().zero_()
    return y


def by_a_mask(y):
    z = y[:4]
    z[z > 0.5] = 0.25
    return y


def an_axis_of_one(y):
    z = y.unsqueeze(1).squeeze(1).detach()
    z.mul_(2)
    return y, z


def the_whole_below_a_view(y):
    z = y[:, :1].expand(6, 6)
    y.mul_(2)
    return y, z


def views_of_views(y):
    z = y[:, 1:]
    w = z[:, 1:]
    z.mul_(2)
    w.add_(1)
    y.mul_(3)
    z[0] = w[0].sum()
    return y, z, w


def a_whole_that_is_gone(y):
    z = (y * 2)[:, :3]
    w = z.t()
    z.add_(1)
    return z, w


def a_whole_in_other_strides(y):
    z = y.t().clone(memory_format=torch.preserve_format)
    z[:, :2] = z[:, 2:4].clone()
    w = z.t()
    w.mul_(2)
    return z, w


def an_empty_one(y):
    out = y.new_zeros(6, 12)
    out[:, :6] = y
    out[:, 6:] = y.flip(1)
    return out


WRITTEN = [
    a_slice,
    one_row_and_column,
    every_second,
    transposed,
    other_axes,
    pieces,
    of_lengths,
    the_diagonal,
]
WRITTEN += [by_a_mask, an_axis_of_one, the_whole_below_a_view, views_of_views, a_whole_that_is_gone]
WRITTEN += [a_whole_in_other_strides, an_empty_one]


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("write", WRITTEN, ids=lambda write: write.__name__)
def test_the_graph_computes_what_the_network_does_that_writes_into_parts(write):
    network = Net(lambda s, x: write(torch.relu(s.a(x))), a=nn.Linear(4, 6)).eval()
    program = dispatched.record(network, (X,), {}, *tracing._decompositions(), numbers=True, whole=True)
    state = network.state_dict() | {name: value for name, value in program.constants.items()}
    given = [state.get(spec.target or "", X) for spec in program.inputs]
    with torch.no_grad():
        real, found = network(X), fx.Interpreter(program.graph_module).run(*given)
    real = real if isinstance(real, tuple) else (real,)
    for one, other in zip(real, found, strict=False):  # what was looked at stands behind
        torch.testing.assert_close(other, one, rtol=0, atol=0)
