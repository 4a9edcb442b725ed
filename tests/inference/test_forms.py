"""Forms that forward passes take: what is followed without the exporter computes what the network does.

Every graph is run on new weights and new inputs. A form that is no longer followed shows as well: the
exporter would have it then, and two seconds be lost.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from rebasin_cli.graph import dispatched, tracing
from rebasin_cli.graph.recorder import Seen, Unfollowed
from rebasin_cli.networks.returned import leaves_of
from tests.inference.test_infer import Net

ROWS, IMAGES, SEQUENCE = torch.randn(4, 6), torch.randn(3, 4, 8, 8), torch.randn(2, 5, 8)
NUMBERS = torch.randint(9, (4, 3))


def linear(function):
    """A network of one layer, `a`, and what is done with it."""
    return lambda: Net(function, a=nn.Linear(6, 6))


def after(change):
    """What `change` does to the layer's values, which it may write into, and then gives."""
    return linear(lambda s, x: change(s.a(x), x))


def kept_in_place(y, x):
    again = y
    y = F.relu(y, inplace=True)
    return y + again


def added_in_place(y, x):
    y += x
    y *= 2
    return y


def summed_before(y, x):
    total = y[:, :3].sum()
    y.add_(1)
    return y + total


def filled(y, x):
    zeros = x.new_zeros(4, 6)
    zeros += y
    return zeros


def without_gradients(s, x):
    with torch.no_grad():
        y = s.a(x)
    return y + s.a(x)


def attribute(s, x):
    s.last = s.a(x)
    return s.last * 2


def embedded(s, numbers):
    return s.e(numbers).mean(1)


def tied(s, numbers):
    return F.linear(s.e(numbers).mean(1), s.e.weight)


def one_image(s, x):
    return s.c(x[0])


def through_a_part(y, x):
    y[:, 0] = 1
    return y


def through_a_view(y, x):
    y.view(-1).mul_(2)
    return y


def through_a_half(y, x):
    first, second = y.chunk(2, 1)
    first.mul_(2)
    return torch.cat([first, second], 1)


FOLLOWED = {
    "expanded": (after(lambda y, x: y.sum(1, keepdim=True).expand(4, 6).add(1)), ROWS),
    "in place": (after(added_in_place), ROWS),
    "in place, and the same again": (after(kept_in_place), ROWS),
    "in place, after a view is done with": (after(summed_before), ROWS),
    "a chain in place": (after(lambda y, x: y.clamp_(0, 1).sqrt_().neg_()), ROWS),
    "zeros added to": (after(filled), ROWS),
    "zeros and ones": (after(lambda y, x: torch.zeros_like(x) + y + torch.ones(6)), ROWS),
    "detached weights": (linear(lambda s, x: s.a(x) + s.a.weight.detach().sum()), ROWS),
    "where": (after(lambda y, x: torch.where(y > 0, y, 0.1)), ROWS),
    "a mask": (after(lambda y, x: y.masked_fill(x > 0, -1.0)), ROWS),
    "a mask in place": (after(lambda y, x: y.masked_fill_(x > 0, -1.0)), ROWS),
    "einsum": (linear(lambda s, x: torch.einsum("bi,ji->bj", x, s.a.weight) + s.a(x)), ROWS),
    "padding": (after(lambda y, x: F.pad(y, (1, 2))), ROWS),
    "an attribute": (linear(attribute), ROWS),
    "several outputs, some none": (linear(lambda s, x: {"o": [s.a(x), None], "n": 3}), ROWS),
    "by a shape": (linear(lambda s, x: s.a(x) if x.shape[0] > 2 else x), ROWS),
    "by a length": (after(lambda y, x: y * len(x)), ROWS),
    "row by row": (after(lambda y, x: torch.stack([row * 2 for row in y])), ROWS),
    "a Fourier transform": (after(lambda y, x: torch.fft.rfft(y, dim=1).abs()), ROWS),
    "other precisions": (after(lambda y, x: y.double().float().to(torch.float16).float()), ROWS),
    "a checkpoint": (linear(lambda s, x: checkpoint(s.a, x, use_reentrant=False)), ROWS),
    "sums and shares": (after(lambda y, x: torch.cumsum(y, 1).softmax(-1)), ROWS),
    "the largest": (after(lambda y, x: y.topk(2, 1)[0]), ROWS),
    "in order": (after(lambda y, x: y.sort(1).values), ROWS),
    "by numbers of its own": (after(lambda y, x: y[torch.arange(4), y.argmax(1)]), ROWS),
    "without gradients": (linear(without_gradients), ROWS),
    "statistics of the batch": (after(lambda y, x: F.batch_norm(y, None, None, training=True)), ROWS),
    "rolled and turned": (after(lambda y, x: torch.roll(y, 1, 1).flip(0)), ROWS),
    "divided by deviations": (after(lambda y, x: y / y.std(dim=1, keepdim=True)), ROWS),
    "copied into": (after(lambda y, x: torch.empty(4, 6).copy_(y)), ROWS),
    "a parameter returned": (linear(lambda s, x: (s.a.weight, s.a(x))), ROWS),
    "the inputs returned": (linear(lambda s, x: (x, s.a(x))), ROWS),
    "a view of a parameter": (linear(lambda s, x: x @ s.a.weight.view(6, 6).t() + s.a(x)), ROWS),
    "other strides": (linear(lambda s, x: s.a(x.t().contiguous().t())), ROWS),
    "embeddings": (lambda: Net(embedded, e=nn.Embedding(9, 6)), NUMBERS),
    "one table twice": (
        lambda: Net(tied, e=nn.Embedding(9, 6)),
        NUMBERS,
    ),
    "one image without a batch": (lambda: Net(one_image, c=nn.Conv2d(4, 5, 3)), IMAGES),
    "normed weights": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), ROWS),
    "spectral norms": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), ROWS),
    "groups, shuffles, transposed": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.ConvTranspose2d(8, 4, 3, stride=2),
            nn.PixelShuffle(2),
        ),
        IMAGES,
    ),
    "channels last": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, padding_mode="reflect", padding=1),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(72, 2),
        ),
        IMAGES.contiguous(memory_format=torch.channels_last),
    ),
    "a transformer's layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), SEQUENCE),
    "a GRU": (lambda: nn.GRU(8, 4), SEQUENCE),
    "grouped in one dimension": (lambda: nn.Conv1d(4, 6, 3, groups=2), torch.randn(2, 4, 9)),
    "three dimensions": (lambda: nn.Conv3d(2, 4, 2), torch.randn(2, 2, 4, 4, 4)),
    "pools and enlarges": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 3, padding="same"),
            nn.MaxPool2d(2),
            nn.Upsample(scale_factor=2),
            nn.LocalResponseNorm(2),
        ),
        IMAGES,
    ),
    "norms and gates": (
        lambda: nn.Sequential(
            nn.BatchNorm1d(6, track_running_stats=False),
            nn.PReLU(6),
            nn.LayerNorm(6),
            nn.RMSNorm(6),
            nn.GLU(),
        ),
        ROWS,
    ),
    "a batch of one": (lambda: nn.Sequential(nn.Linear(6, 6), nn.Softplus(), nn.LogSoftmax(1)), ROWS[:1]),
    "other shapes": (lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(0, 1), nn.Linear(3, 2)), ROWS),
    "depthwise, in place": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 1), nn.ReLU(True), nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.ReLU6(True)
        ),
        IMAGES,
    ),
    "written through a view": (after(through_a_view), ROWS),
    "written through a half": (after(through_a_half), ROWS),
    "a view that is written below": (after(lambda y, x: (y.t(), y.mul_(2))), ROWS),
    ".data that is written into": (after(lambda y, x: (y.data.mul_(2), y)), ROWS),
}


def drawn(value):
    return torch.randint(9, value.shape) if value.dtype == torch.int64 else torch.randn_like(value)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("form", FOLLOWED)
def test_a_graph_computes_what_its_network_does_with_other_weights_and_inputs(form, learns):
    build, inputs = FOLLOWED[form]
    network = build().eval().requires_grad_(learns)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with torch.set_grad_enabled(learns):
        program = dispatched.record(network, (inputs,), {}, *tracing._decompositions())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.5)
    state = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers())
    new = drawn(inputs)
    given = [new if spec.kind == InputKind.USER_INPUT else state[spec.target] for spec in program.inputs]
    with torch.no_grad():
        found = fx.Interpreter(program.graph_module).run(*given)
        expected = [leaf.tensor for leaf in leaves_of(network(new)) if leaf.tensor is not None]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def turned_in_place(y, x):
    y.t_()
    return y


def told_where(y, x):
    out = torch.empty(4, 6)
    torch.mul(y, 2, out=out)
    return out


def with_gradients(s, x):
    with torch.enable_grad():
        z = x.clone().requires_grad_()
        return s.a(x) + torch.autograd.grad(s.a(z).sum(), z)[0]


LEFT = {
    "written through a part": after(through_a_part),
    "turned in place": after(turned_in_place),
    "told where to write": after(told_where),
    "a number": after(lambda y, x: y * x.sum().item()),
    "numpy": after(lambda y, x: y * float(x.numpy().sum())),
    "a constant": after(lambda y, x: y + torch.tensor([1.0, 2, 3, 4, 5, 6])),
    "gradients": linear(with_gradients),
    "chance": after(lambda y, x: y + torch.randn_like(y)),
}


@pytest.mark.parametrize("form", LEFT)
def test_forms_that_are_not_followed_for_certain_are_left_to_the_exporter(form):
    with pytest.raises((Unfollowed, RuntimeError)):
        dispatched.record(LEFT[form]().eval(), (ROWS.clone(),), {}, *tracing._decompositions())


@pytest.mark.parametrize("form", ["an attribute", "normed weights", "a transformer's layer"])
def test_networks_keep_nothing_of_their_tracing(form):
    build, inputs = FOLLOWED[form]
    network = build()
    tracing.export(network, (inputs,), {})
    held = [it for module in network.modules() for it in pytree.tree_leaves([*vars(module).values()])]
    assert not any(isinstance(it, Seen) for it in held)
