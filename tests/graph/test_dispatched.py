"""Networks as graphs, without PyTorch's exporter: the same graphs, or the exporter is asked."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from rebasin_cli import nets
from rebasin_cli.graph import dispatched, nodes, tracing
from rebasin_cli.graph.recorder import Unfollowed
from rebasin_cli.graph.tracing import line_of
from rebasin_cli.networks.returned import leaves_of
from tests.inference.test_infer import Net

ROWS = torch.rand(4, 3)
IMAGES = torch.rand(2, 3, 8, 8)
SEQUENCE = torch.rand(2, 5, 3)
SMALL = ("mlp", "tinyten", "vit")
LARGE = ("vgg11", "resnet20", "resnet50", "googlenet")


def recorded(network, *inputs, **keywords):
    return dispatched.record(network.eval(), inputs, keywords, *tracing._decompositions())


def exported(network, *inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tracing.exported_by_torch(network.eval(), inputs, {}, tracing._decompositions()[0])


def described(program):
    """Every node, with what it reads and how large its value is; names of inputs are nobody's."""
    number, found = {}, []
    inputs = {spec.arg.name for spec in program.inputs if spec.target is None}
    for node in program.graph.nodes:
        number[node] = len(number)
        if node.op == "call_function" and hasattr(node.target, "_schema"):
            read = nodes.by_name(node.target._schema, node.args, node.kwargs)
        else:
            read = {"args": node.args}
        read.pop("cudnn_enable", None)  # which library does it
        read = fx.node.map_arg(dict(sorted(read.items())), lambda n: f"%{number[n]}")
        value = node.meta.get("val")
        first = value[0] if isinstance(value, (tuple, list)) else value  # not what a norm keeps beside
        size = (first.shape, first.dtype) if isinstance(first, torch.Tensor) else None
        name = "" if node.name in inputs else node.name
        found.append((node.op, name, node.op == "placeholder" or str(node.target), repr(read), size))
    return found


def signature(program):
    inputs = [(spec.kind, spec.target, spec.persistent) for spec in program.inputs]
    return inputs, [(spec.kind, type(spec.arg), spec.target) for spec in program.outputs], structure(program)


def structure(program):
    return [(leaf.way, getattr(leaf.tensor, "shape", None)) for leaf in leaves_of(program.returned)]


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.sweep) for name in LARGE)])
def test_our_networks_have_the_graphs_that_the_exporter_makes(name):
    shape = (1, 8, 8) if name == "mlp" else (3, 32, 32)
    network, inputs = nets.build(name, input_shape=shape, classes=10), torch.rand(2, *shape)
    ours, theirs = recorded(network, inputs), exported(network, inputs)
    assert described(ours) == described(theirs)
    assert signature(ours) == signature(theirs)


class Ordinary(nn.Module):
    """What networks are made of beside layers."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.drop, self.act = nn.MaxPool2d(2), nn.Dropout(0.5), nn.ReLU(inplace=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.ones(8), persistent=False)

    def forward(self, x):
        x = self.pool(self.act(self.norm(self.conv(x))))
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear").flatten(2).transpose(1, 2)
        x = self.attention(x, x, x, need_weights=False)[0].mean(1) * self.scale
        a, b = self.first(x).chunk(2, -1)
        x = torch.cat([a, b.sigmoid() + torch.arange(4)], -1)
        return {"logits": self.last(self.drop(x)), "scale": self.scale, "name": "ordinary"}


@pytest.mark.parametrize("learns", [True, False])
def test_what_networks_are_made_of_is_written_down_as_the_exporter_does(learns):
    network = Ordinary()
    with torch.set_grad_enabled(learns):  # attention is one operation to PyTorch where nothing learns
        ours, theirs = recorded(network, IMAGES), exported(network, IMAGES)
    assert described(ours) == described(theirs) and signature(ours) == signature(theirs)
    assert list(ours.constants) == ["scale"] and torch.equal(ours.constants["scale"], torch.ones(8))


def test_a_graph_computes_what_the_network_does():
    network = Ordinary()
    program = recorded(network, IMAGES)
    state = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers())
    given = [IMAGES if spec.target is None else state[spec.target] for spec in program.inputs]
    logits = fx.Interpreter(program.graph_module).run(*given)[0]
    assert torch.allclose(logits, network(IMAGES)["logits"], atol=1e-6)


def test_one_sample_says_how_all_samples_of_a_convolution_lie():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 2)).eval()
    network = network.to(memory_format=torch.channels_last)
    images = torch.rand(5, 3, 8, 8).to(memory_format=torch.channels_last)
    convolved = next(n for n in recorded(network, images).graph.nodes if "conv" in str(n.target))
    real = network[0](images)
    assert convolved.meta["val"].shape == real.shape and convolved.meta["val"].stride() == real.stride()
    assert described(recorded(network, images)) == described(exported(network, images))


def test_rows_that_known_numbers_choose_are_in_the_graph():
    """By a mask of the network's own; one of the input's numbers is left to the exporter."""
    network = Net(lambda s, x: s.a(x[:, s.taken]), a=nn.Linear(2, 2))
    network.register_buffer("taken", torch.tensor([True, False, True]))
    table = tracing._decompositions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what PyTorch may use instead
        graph = dispatched.record(network.eval(), (ROWS,), {}, *table, numbers=True).graph
    assert next(node for node in graph.nodes if "index" in str(node.target)).meta["val"].shape == (4, 2)
    network = Net(lambda s, x: s.a(x[x[:, 0] > 0.5]), a=nn.Linear(3, 2))
    with pytest.raises(Unfollowed):
        dispatched.record(network.eval(), (ROWS,), {}, *table)


def test_inputs_that_are_one_tensor_stay_two_inputs():
    network = Net(lambda s, x, y: s.a(x) + s.b(y), a=nn.Linear(3, 2), b=nn.Linear(3, 2))
    graph = recorded(network, ROWS, ROWS).graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"][-2:]
    assert [len(node.users) for node in inputs] == [1, 1]


def test_what_is_written_into_is_a_new_value_where_nobody_else_reads_it():
    network = Net(lambda s, x: s.a(x).add_(1).relu_().mul(2), a=nn.Linear(3, 2))
    names = [str(node.target) for node in recorded(network, ROWS).graph.nodes if node.op == "call_function"]
    assert names == ["aten.linear.default", "aten.add.Tensor", "aten.relu.default", "aten.mul.Tensor"]


TABLE = torch.rand(2)


def in_strides(s, x):
    y = s.a(x)
    y.as_strided((2,), (1,)).zero_()
    return y


def by_value(s, x):
    return s.a(x) if x.sum().item() > 0 else x


def assigned(s, x):
    s.mean = s.a(x).mean(0).detach()
    return s.a(x)


def written_data(s, x):
    y = s.a(x)
    y.data = y.data * 2
    return y


def swallowed(s, x):
    y = s.a(x)
    try:
        y = y * TABLE
    except Exception:
        pass
    return y


def in_another_thread(s, x):
    with ThreadPoolExecutor(1) as pool:
        return s.a(x) * pool.submit(lambda: float(x.sum())).result()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (by_value, "_local_scalar_dense"),
        (lambda s, x: s.a(x) if x.sum() > 0 else x, "_local_scalar_dense"),
        (lambda s, x: s.a(x)[x[:, 0] > 0.5], "index"),
        (lambda s, x: s.a(x).nonzero(), "nonzero"),
        (lambda s, x: s.a(x) + torch.rand(2), "rand"),
        (lambda s, x: F.dropout(s.a(x), training=True), "chance"),
        (lambda s, x: s.a(x) * TABLE, "is no parameter, buffer or input"),
        (in_strides, "in a way that is not known"),
        (lambda s, x: s.a(x).bfloat16().add_(x[:, :2]), "changes what it writes into"),  # it would be float32
        (lambda s, x: torch.ops.prims.sin(s.a(x)), "prims.sin"),
        (assigned, "assigns a parameter or a buffer"),
        (written_data, "dispatched nowhere"),
        (lambda s, x: s.a(x) * (2 if s.a(x).data_ptr() else 3), "dispatched nowhere"),
        (lambda s, x: s.a(x) * (2 if s.a(x).requires_grad else 3), "dispatched nowhere"),
        (lambda s, x: F.instance_norm(s.a(x)[None], s.four, s.four), "instance_norm"),
        (swallowed, "is no parameter, buffer or input"),
        (in_another_thread, "where it is not seen"),
        (lambda s, x: s.a(x.add_(1)), "writes into what the network was given"),
        (lambda s, x: F.batch_norm(s.a(x), s.mean, s.mean, training=True), "batch_norm"),
    ],
)
def test_what_is_not_followed_for_certain_is_left_to_the_exporter(function, why):
    network = Net(function, a=nn.Linear(3, 2))
    network.register_buffer("mean", torch.ones(2))
    network.register_buffer("four", torch.ones(4))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(Unfollowed, match=why):
        recorded(network, ROWS.clone())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_casts_within_a_network_are_operations_of_its_graph():
    def cast(s, x):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.softmax(s.b(s.a(x)), -1) + x.sum()

    network = Net(cast, a=nn.Linear(3, 2), b=nn.Linear(2, 2))
    assert described(recorded(network, ROWS)) == described(exported(network, ROWS))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(Unfollowed, match="precision"):
        recorded(network, ROWS)


def test_several_devices_and_other_kinds_of_tensors_are_left_to_the_exporter():
    with pytest.raises(Unfollowed, match="2 devices"):
        recorded(Net(lambda s, x: x, a=nn.Linear(3, 2)), torch.rand(4, 3, device="meta"))
    with pytest.raises(Unfollowed, match="plain"):
        recorded(nn.Linear(3, 2), torch.rand(4, 3).to_sparse())
    with pytest.raises(Unfollowed, match="meta beside cpu"):
        recorded(Net(lambda s, x: s.a(x.to("meta")), a=nn.Linear(3, 2)), ROWS)


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * TABLE


@pytest.mark.parametrize(("kind", "line"), [(Doubled, "* 2"), (Scaled, "* TABLE")])
def test_the_exporter_follows_what_was_left_to_it_and_names_the_line_all_the_same(kind, line):
    nodes = tracing.export(kind(3, 2), (ROWS,), {}).graph.nodes
    for operation in ("linear", "mul"):
        found = line_of(next(n for n in nodes if operation in str(n.target)))
        assert found.startswith("test_dispatched.py:") and found.endswith(f"return super().forward(x) {line}")


def test_what_a_network_keeps_elsewhere_while_it_is_traced_does_not_break_it():
    kept = {}

    def table(s, x):
        if not kept:
            kept["table"] = (torch.linspace(0, 1, 2).repeat(2) / 2).mul_(2)[:2]
        return s.a(x) * kept["table"]

    network = Net(table, a=nn.Linear(3, 2))
    recorded(network, ROWS)
    assert torch.equal(network(ROWS), network.a(ROWS) * torch.tensor([0.0, 1.0]))
    with pytest.raises(Unfollowed, match="is no parameter, buffer or input"):
        recorded(network, ROWS)  # a table of another graph

    def last(s, x):
        kept["last"] = s.a(x)
        return kept["last"]

    recorded(Net(last, a=nn.Linear(3, 2)), ROWS)
    with pytest.raises(Unfollowed, match="kept while it was traced"):  # its numbers were not computed
        kept["last"] + 1


def test_where_all_code_is_pytorchs_the_line_is_of_its_function():
    nodes = tracing.export(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (ROWS,), {}).graph.nodes
    assert line_of(next(n for n in nodes if "relu" in str(n.target))).startswith("functional.py:")


def test_parameters_are_parameters_to_who_asks():
    network = Net(
        lambda s, x: s.a(x) * (s.a.bias if isinstance(s.a.bias, nn.Parameter) else 1), a=nn.Linear(3, 2)
    )
    assert described(recorded(network, ROWS)) == described(exported(network, ROWS))


@pytest.mark.parametrize("learns", [True, False])
def test_attention_is_many_operations_also_where_nothing_learns(learns):
    """PyTorch has one for a whole layer then, which no rule takes apart."""
    network = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).requires_grad_(learns)
    with torch.set_grad_enabled(learns):
        both = recorded(network, torch.rand(2, 5, 8)), exported(network, torch.rand(2, 5, 8))
    ours, theirs = ([it for it in described(graph) if it[0] != "placeholder"] for graph in both)
    assert ours == theirs  # the exporter has other names for the layer's parts
    assert any("scaled_dot_product" in str(node.target) for node in both[0].graph.nodes)
