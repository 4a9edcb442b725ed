"""A chain read off shapes: its spec where one reading is left, and a refusal that says why where not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import NoSpecFits
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec import chain, library
from rebasin_cli.spec.layers import NoChain
from tests.transformers import NoBias

L, C, T = nn.Linear, nn.Conv2d, nn.ConvTranspose2d


class Parts(nn.Module):
    """Modules by name, run by a function of them."""

    def __init__(self, run=None, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, x):
        return self.run(self, x)


def shapes(network, *, filed=True):
    found = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    return found if filed else dict(sorted(found.items()))


def mlp(sizes=(12, 9, 7, 3), **more):
    names = [f"fc{k}" for k in range(1, len(sizes))]

    def run(net, x):
        for name in names[:-1]:
            x = torch.relu(getattr(net, name)(x))
        return getattr(net, names[-1])(x)

    return Parts(run, **{n: L(a, b, **more) for n, a, b in zip(names, sizes, sizes[1:], strict=False)})


def cnn(first=1):
    def run(net, x):
        x = F.max_pool2d(torch.relu(net.bn1(net.conv1(x))), 2)
        x = F.max_pool2d(torch.relu(net.bn2(net.conv2(x))), 2)
        return net.fc2(torch.relu(net.fc1(x.flatten(1))))

    layers = {"conv1": C(first, 6, 3, padding=1), "bn1": nn.BatchNorm2d(6), "conv2": C(6, 10, 3, padding=1)}
    return Parts(run, **layers, bn2=nn.BatchNorm2d(10), fc1=L(10 * 4, 14), fc2=L(14, 5))


def sequential():
    features = nn.Sequential(
        C(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), C(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU()
    )
    head = nn.Sequential(nn.Flatten(), L(6 * 16, 8), nn.ReLU(), nn.Dropout(), L(8, 8), nn.Tanh(), L(8, 4))
    return Parts(lambda net, x: net.head(net.features(x)), features=features, head=head)


def generator():
    main = nn.Sequential(
        *(T(9, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(T(6, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), T(4, 1, 3, bias=False)),
    )
    return Parts(lambda net, x: net.main(x), main=main)


def bare():
    return nn.Sequential(L(12, 8), nn.LayerNorm(8), nn.ReLU(), L(8, 8), nn.PReLU(8), nn.Dropout(0), L(8, 8))


def decoder():
    net = nn.Sequential(L(5, 8), nn.ReLU(), L(8, 4 * 9), nn.Unflatten(1, (4, 3, 3)), T(4, 2, 2), nn.ReLU())
    return net.append(T(2, 1, 2))


ALL = {
    "mlp": (mlp, (12,), 2),
    "mlp without biases": (lambda: mlp(bias=False), (12,), 2),
    "cnn": (cnn, (1, 8, 8), 3),
    "sequential": (sequential, (3, 8, 8), 4),
    "transposed without biases": (generator, (9, 2, 2), 2),
    "nothing but a Sequential": (bare, (12,), 2),
    "decoder": (decoder, (5,), 3),
}


@pytest.mark.parametrize("kind", ALL)
def test_a_chain_is_read_as_its_network_proves(kind):
    make, shape, words = ALL[kind]
    torch.manual_seed(0)
    network = make()
    fitted = chain.read(shapes(network))
    assert len(fitted.words) == words and "read off shapes" in fitted.spec.unproven
    prove(network, fitted, torch.rand(2, *shape))


@pytest.mark.parametrize("kind", ALL)
def test_the_spec_of_a_chain_is_one_in_whatever_order_a_file_has_its_tensors(kind):
    of = shapes(ALL[kind][0]())
    names = [*of]
    orders = [names[::-1], sorted(names), sorted(names, key=lambda name: name[::-1])]
    first = chain.read(of)
    for order in orders:
        other = chain.read({name: of[name] for name in order})
        assert (other.spec, other.words, other.tensors) == (first.spec, first.words, first.tensors), order


@pytest.mark.parametrize("filed", [True, False], ids=["as registered", "sorted"])
def test_the_order_in_a_file_does_not_matter_where_widths_differ(filed):
    assert chain.read(shapes(cnn(), filed=filed)).words == {"conv1": 6, "conv2": 10, "fc1": 14}


def test_what_is_flattened_is_told():
    assert (
        "between conv2 and fc1 flattened, channels first: (conv2 4)"
        in chain.read(shapes(cnn())).spec.unproven
    )


REFUSED = {
    "equal hidden widths": (
        lambda: mlp((12, 8, 8, 3)),
        "8 units between fc1 and fc2 and between fc2 and fc3",
    ),
    "a hidden width equal to the inputs": (lambda: mlp((12, 12, 3)), "12 units at the inputs and between"),
    "a hidden width equal to the outputs": (lambda: mlp((12, 3, 3)), "3 units between fc1 and fc2"),
    "a list of modules": (
        lambda: Parts(layers=nn.ModuleList([L(6, 4), L(4, 4), L(4, 2)])),
        "4 units between layers.0 and layers.1",
    ),
    "blocks that are Sequentials": (
        lambda: Parts(**{n: nn.Sequential(L(8, 6), nn.ReLU(), L(6, 8)) for n in ("one", "two")}),
        "several orders of its layers fit",
    ),
    "two heads": (lambda: Parts(a=L(6, 4), mean=L(4, 2), spread=L(4, 2)), "in no order"),
    "an order that is none": (
        lambda: Parts(fc1=L(784, 400), fc21=L(400, 20), fc22=L(400, 20), fc3=L(20, 400), fc4=L(400, 784)),
        "several orders",
    ),
    "encoder and decoder": (
        lambda: Parts(
            encoder=nn.Sequential(L(9, 6), nn.ReLU(), L(6, 2)),
            decoder=nn.Sequential(L(2, 6), nn.ReLU(), L(6, 9)),
        ),
        "several orders",
    ),
    "a norm of groups": (
        lambda: Parts(a=C(1, 6, 3), norm=nn.GroupNorm(2, 6), b=C(6, 4, 3)),
        "norm  may be a GroupNorm",
    ),
    "depthwise": (lambda: Parts(a=C(3, 6, 1), b=C(6, 6, 3, groups=6), c=C(6, 4, 1)), "in no order"),
    "square, perhaps transposed": (
        lambda: nn.Sequential(C(1, 6, 3), nn.ReLU(), C(6, 6, 2), nn.ReLU(), C(6, 1, 3)),
        "2  may be transposed",
    ),
    "square among transposed": (
        lambda: nn.Sequential(T(9, 6, 3), nn.ReLU(), T(6, 6, 3), nn.ReLU(), T(6, 1, 3)),
        "2  may be transposed",
    ),
    "there and back without biases": (
        lambda: nn.Sequential(C(6, 4, 3, bias=False), nn.ReLU(), C(4, 6, 3, bias=False)),
        "may have inputs or outputs first",
    ),
    "a list with a block in it": (
        lambda: nn.Sequential(
            *(L(6, 4), nn.ReLU(), L(4, 4), nn.ReLU(), L(4, 2), nn.ReLU(), Parts(only=L(2, 5)))
        ),
        "4 units between 0 and 2",
    ),
    "no square is flattened": (lambda: Parts(a=C(1, 6, 3), b=L(6 * 5, 4)), "in no order"),
    "an embedding": (lambda: Parts(a=nn.Embedding(99, 8), b=L(8, 6), c=L(6, 2)), "in no order"),
    "recurrent": (lambda: Parts(a=nn.LSTM(4, 6), b=L(6, 2)), "a  with weight_ih_l0"),
    "attention": (NoBias, "place  is of no module"),
    "one layer": (lambda: Parts(a=L(4, 2)), "1 modules have weights"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_may_be_something_else_is_refused(kind):
    make, why = REFUSED[kind]
    with pytest.raises(NoChain, match=why.replace("(", r"\(")):
        chain.read(shapes(make()))


def test_who_says_that_nothing_goes_around_a_layer_has_the_chain():
    torch.manual_seed(0)
    network = mlp((12, 8, 8, 8, 3))
    fitted = chain.read(shapes(network, filed=False), plain=True)
    assert fitted.words == {"fc1": 8, "fc2": 8, "fc3": 8} and "--spec chain" in fitted.spec.unproven
    prove(network, fitted, torch.rand(2, 12))


def test_norms_of_equal_sizes_are_found_by_number_and_file_and_refused_where_these_differ():
    def parts(*names):
        made = {
            "fc1": L(9, 6),
            "fc2": L(6, 6),
            "fc3": L(6, 2),
            "bn1": nn.BatchNorm1d(6),
            "bn2": nn.BatchNorm1d(6),
        }
        return shapes(Parts(**{name: made[name] for name in names}))

    fitted = chain.read(parts("fc1", "bn1", "fc2", "bn2", "fc3"), plain=True)
    assert [str(fitted.tensors[f"bn{k}.weight"][0]) for k in (1, 2)] == ["fc1", "fc2"]
    with pytest.raises(NoChain, match="bn2  has 6 units"):
        chain.read(parts("fc1", "bn2", "fc2", "bn1", "fc3"), plain=True)


def test_the_order_of_a_file_tells_what_shapes_leave_open_only_where_it_is_not_sorted():
    network = Parts(first=L(9, 6), again=L(6, 6), between=L(6, 6), last=L(6, 2))
    order = [*chain.read(shapes(network), plain=True).words]
    assert order == ["first", "again", "between"]
    said = "one of several that fit: first → again → between → last"
    assert said in chain.read(shapes(network), plain=True).spec.unproven
    other = Parts(first=L(9, 6), between=L(6, 6), again=L(6, 6), last=L(6, 2))
    assert (
        chain.read(shapes(other), plain=True).spec.digest
        != chain.read(shapes(network), plain=True).spec.digest
    )
    with pytest.raises(NoChain, match="several orders"):
        chain.read(shapes(network, filed=False), plain=True)
    alphabetic = Parts(a=L(9, 6), b=L(6, 6), c=L(6, 6), d=L(6, 2))  # sorted it fits, too, and says as little
    assert [*chain.read(shapes(alphabetic), plain=True).words] == ["a", "b", "c"]
    with pytest.raises(chain.NoChain, match="several orders"):
        chain.read(shapes(alphabetic, filed=False), plain=True)


def test_names_of_a_shipped_network_that_has_more_layers_are_a_chain():
    here = {"conv1.weight": (16, 3, 3, 3), "conv2.weight": (32, 16, 3, 3), "fc.weight": (10, 32)}
    assert library.resolve_spec(None, [{n: torch.zeros(s) for n, s in here.items()}]).spec.name == "chain"
    with pytest.raises(NoSpecFits):
        library.find(here)
    eight = {f"conv{k}.weight": (16, 16, 3, 3) for k in range(2, 9)} | {"conv1.weight": (16, 3, 3, 3)}
    assert library.find(eight | {"fc.weight": (10, 16)}).spec.name == "tinyten"
