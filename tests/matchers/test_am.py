"""Activation matching: where units are seen, how they are compared, and what comes of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import nets
from rebasin_cli.errors import SpecError, UsageError
from rebasin_cli.inference import infer
from rebasin_cli.matchers import Problem, am
from rebasin_cli.matchers.activations import options as looking
from rebasin_cli.matchers.activations.batches import watch
from rebasin_cli.matchers.activations.moments import Moments
from rebasin_cli.matchers.activations.similarities import _solved, similarities
from rebasin_cli.matchers.activations.sites import find
from rebasin_cli.runtime.threads import Beside
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import assignment, permutation
from rebasin_cli.symmetry.permutation import permuted
from tests.matchers.test_matchers import equal, randomised


class Net(nn.Module):
    """A network in two lines: modules by name, and what to do with them."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def batches(*shape, count=3, size=16, seed=0, **kwargs):
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, *shape, generator=rng, **kwargs), torch.zeros(size)) for _ in range(count)]


def attention(s, x):
    q, k, v = (m(x).unflatten(-1, (3, 4)).transpose(1, 2) for m in (s.q, s.k, s.v))
    return s.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def block(s, x):
    x = s.embed(x) + s.place.weight
    x = x + attention(s, s.norm1(x))
    return s.head((x + s.down(F.silu(s.gate(y := s.norm2(x))) * s.up(y))).mean(1))


def transformer():
    """One layer by hand: 3 heads of 4, a gated MLP, a residual stream of 12."""
    linear = {name: nn.Linear(12, 12) for name in "qkvo"}
    linear |= {"gate": nn.Linear(12, 10), "up": nn.Linear(12, 10), "down": nn.Linear(10, 12)}
    return Net(
        block, embed=nn.Linear(5, 12), place=nn.Embedding(6, 12), norm1=nn.LayerNorm(12),
        norm2=nn.LayerNorm(12), head=nn.Linear(12, 4), **linear,
    )  # fmt: skip


def inferred(network, data):
    return infer(network, data[0][0]).fitted


def built(name):
    """A network of ours, its spec and data."""
    shape, width = {"mlp": ((1, 6, 6), 24), "resnet20": ((3, 16, 16), 0.5)}[name]
    network = nets.build(name, input_shape=shape, classes=5, width=width)
    fitted = library.find({key: tuple(tensor.shape) for key, tensor in network.state_dict().items()})
    return network, fitted, batches(*shape)


def setting(name):
    if name != "transformer":
        return built(name)
    network, data = transformer(), batches(6, 5)
    return network, inferred(network, data), data


def shuffled(model, fitted, seed=5):
    rng = torch.Generator().manual_seed(seed)
    perm = permutation.random(fitted.words, rng, within=fitted.within)
    return dict(permuted(model, fitted, perm)), perm


def places(network, fitted, data):
    """word → the nodes of its sites, after and before the activation"""
    found = find(network, fitted, (data[0][0],), {}).of
    return {
        word: [([p.node.name for p in site.post], [p.node.name for p in site.pre]) for site in its]
        for word, its in found.items()
    }


# ------------------------------------------------------------------------------------------ promises


@pytest.mark.parametrize(
    ("name", "at"),
    [
        pytest.param(name, at, marks=[pytest.mark.sweep] if name != "mlp" and at != looking.AT[0] else [])
        for name in ("mlp", "resnet20", "transformer")
        for at in looking.AT
    ],
)
def test_a_planted_permutation_is_recovered_also_under_noise(name, at):
    network, fitted, data = setting(name)
    model = randomised(network.state_dict(), 0)
    hidden, perm = shuffled(model, fitted)
    rng = torch.Generator().manual_seed(1)
    noisy = {
        key: t + 0.01 * t.std(correction=0) * torch.randn(t.shape, generator=rng)
        if t.is_floating_point() and "running" not in key
        else t
        for key, t in hidden.items()
    }
    for other in (hidden, noisy):
        found = am.match(Problem(fitted, (model, other), network=network, data=data), am.Options(at=at))
        assert equal(found.permutations[0], permutation.invert(perm))


@pytest.mark.parametrize("cost", looking.COSTS)
@pytest.mark.parametrize("sites", looking.SITES)
def test_every_cost_and_choice_of_sites_recovers_it(cost, sites):
    network, fitted, data = setting("resnet20")
    model = randomised(network.state_dict(), 0)
    hidden, perm = shuffled(model, fitted)
    options = am.Options(cost=cost, sites=sites)
    found = am.match(Problem(fitted, (model, hidden), network=network, data=data), options)
    assert equal(found.permutations[0], permutation.invert(perm))


def test_heads_and_their_units_keep_the_function():
    network, fitted, data = setting("transformer")
    a, b = (randomised(network.state_dict(), seed) for seed in range(2))
    aligned = rebasin_cli.align(a, b, fitted, method="am", network=network, data=data, inputs=data[0][0][:2])
    permutation.check(aligned.permutations[0], fitted.words, within=fitted.within)
    assert not permutation.is_identity(aligned.permutations[0]) and aligned.proof is not None
    assert {"q.heads", "gate"} <= fitted.words.keys() and "q.dim" in fitted.within


# ----------------------------------------------------------------------------------------- where units are


def test_units_are_seen_after_the_last_activation_and_before_it_after_the_norm():
    """A depthwise convolution is no reader, and pooling comes after."""

    def forward(s, x):
        x = F.relu(s.n1(s.a(x)))
        return s.h(F.max_pool2d(torch.tanh(s.n2(s.d(x))), 2).flatten(1))

    network = Net(
        forward, a=nn.Conv2d(3, 8, 3), n1=nn.BatchNorm2d(8), d=nn.Conv2d(8, 8, 3, groups=8),
        n2=nn.BatchNorm2d(8), h=nn.Linear(32, 3),
    )  # fmt: skip
    data = batches(3, 8, 8)
    ((post, pre),) = places(network, inferred(network, data), data)["a"]
    assert post == ["tanh"] and pre == ["getitem_3"]  # what the second norm returns


def test_a_residual_word_is_seen_at_every_sum_before_and_after_its_activation():
    def forward(s, x):
        x = s.i(x)
        x = F.relu(x + s.a(F.relu(s.b(x))))
        return s.h(x + s.c(F.relu(s.d(x))))

    network = Net(forward, **{name: nn.Linear(6, 6) for name in "abcd"}, i=nn.Linear(3, 6), h=nn.Linear(6, 2))
    data = batches(3)
    stream = places(network, inferred(network, data), data)["i"]
    assert stream == [(["linear"], ["linear"]), (["relu_1"], ["add"]), (["add_1"], ["add_1"])]


def test_concatenations_are_split_by_segment():
    network = Net(
        lambda s, x: s.h(torch.cat([F.relu(s.a(x)), torch.tanh(s.b(x))], 1)),
        a=nn.Linear(3, 4), b=nn.Linear(3, 5), h=nn.Linear(9, 2),
    )  # fmt: skip
    data = batches(3)
    fitted = inferred(network, data)
    assert places(network, fitted, data) == {"a": [(["relu"], ["linear"])], "b": [(["tanh"], ["linear_1"])]}
    network.function = lambda s, x: s.h(torch.tanh(torch.cat([s.a(x), s.b(x)], 1)))
    found = find(network, fitted, (data[0][0],), {}).of
    value = torch.randn(16, 9)
    assert torch.equal(found["a"][0].post[0].units(value), value[:, :4].T)
    assert torch.equal(found["b"][0].post[0].units(value), value[:, 4:].T)


def test_a_gate_is_one_activation_and_heads_are_seen_as_they_are_read():
    network, fitted, data = setting("transformer")
    found = places(network, fitted, data)
    ((post, pre),) = found["gate"]
    assert post[0].startswith("mul") and len(pre) == 2 and all(name.startswith("linear") for name in pre)
    assert found["q.heads"] == [] and len(found["q.dim"]) == 2  # queries and keys
    assert found["v"] == [(["scaled_dot_product_attention"],) * 2]
    units = find(network, fitted, (data[0][0],), {}).of["q.dim"][0].post[0]
    value = torch.randn(units.node.meta["val"].shape)
    assert units.units(value).shape == (12, 16 * 6)


def test_axes_that_another_word_permutes_are_averaged_over():
    network = Net(
        lambda s, x: s.h(s.back(torch.tanh(s.mix(s.i(x).transpose(1, 2)))).mean(2)),
        i=nn.Linear(3, 5), mix=nn.Linear(4, 7), back=nn.Linear(7, 4), h=nn.Linear(5, 2),
    )  # fmt: skip
    data = batches(4, 3)
    fitted = inferred(network, data)
    place = find(network, fitted, (data[0][0],), {}).of["mix"][0].post[0]
    value = torch.randn(16, 5, 7)
    torch.testing.assert_close(place.units(value), value.mean(1).T, rtol=1e-5, atol=1e-6)


def test_a_hand_written_spec_with_less_freedom_and_other_names_is_traced():
    network, data = transformer(), batches(6, 5)
    lines = {name: " ".join("." for _ in t.shape) for name, t in network.state_dict().items()}
    lines |= {
        "gate.weight": "m .",
        "gate.bias": "m",
        "up.weight": "m .",
        "up.bias": "m",
        "down.weight": ". m",
    }
    lines |= {f"{k}.weight": "(t 4) ." for k in "qkv"} | {f"{k}.bias": "(t 4)" for k in "qkv"}
    lines |= {"o.weight": ". (t 4)"}
    text = "tensors:\n" + "".join(f'  {name}: "{axes}"\n' for name, axes in lines.items())
    shapes = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    fitted = fit(parse(text, name="mine"), shapes)
    model = randomised(network.state_dict(), 0)
    hidden, perm = shuffled(model, fitted)
    found = am.match(Problem(fitted, (model, hidden), network=network, data=data)).permutations[0]
    assert found.keys() == {"m", "t"} and equal(found, permutation.invert(perm))


def test_a_word_without_a_site_is_named():
    network = Net(lambda s, x: s.h(F.relu(s.a(x))), a=nn.Linear(3, 4), b=nn.Linear(3, 4), h=nn.Linear(4, 2))
    text = 'tensors:\n  a.weight: "p ."\n  a.bias: "p"\n  h.weight: ". p"\n  h.bias: "."\n'
    text += '  b.weight: "q ."\n  b.bias: "q"\n'
    fitted = fit(parse(text, name="mine"), {k: tuple(t.shape) for k, t in network.state_dict().items()})
    model = network.state_dict()
    with pytest.raises(SpecError, match="nowhere in the network's graph") as caught:
        am.match(Problem(fitted, (model, model), network=network, data=batches(3)))
    assert len(caught.value.problems) == 1 and caught.value.problems[0].startswith('"q"')
    assert "--method wm" in caught.value.hint


# ------------------------------------------------------------------------------------- how they are compared


def test_dead_units_leave_the_others_where_they_belong():
    network, fitted, data = built("mlp")
    model = randomised(network.state_dict(), 0)
    model["layers.1.bias"][:5] = -1e3
    hidden, perm = shuffled(model, fitted)
    found = am.match(Problem(fitted, (model, hidden), network=network, data=data))
    back = permutation.compose(perm, found.permutations[0])
    similar = similarities(Problem(fitted, (model, model), network=network, data=data), am.Options())["post"]
    for word, order in back.items():
        alive = similar[word].diagonal() > 0.5
        assert torch.equal(order[alive], torch.arange(24)[alive])
        assert not similar[word][~alive].any() and not similar[word][:, ~alive].any()
    assert (similar["h1"].diagonal()[:5] == 0).all() and len(back) == 3
    same = am.match(Problem(fitted, (model, model), network=network, data=data))
    assert permutation.is_identity(same.permutations[0])


def test_both_takes_the_best_before_the_activation_among_the_best_after_it():
    post = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0.0]], dtype=torch.float64)
    pre = torch.tensor([[0, 9, 9, 9], [0, 0, 0, 1], [0, 1, 0, 0], [9, 0, 1, 0.0]], dtype=torch.float64)
    assert torch.equal(_solved(post, None), torch.arange(4))
    assert torch.equal(_solved(post, pre), torch.tensor([0, 3, 1, 2]))
    rng = torch.Generator().manual_seed(0)
    post, pre = (torch.rand(30, 30, generator=rng, dtype=torch.float64) for _ in range(2))
    post = post.mul(4).round()  # many are equally good
    found = _solved(post, pre)
    best = assignment.solve(post).perm
    assert assignment.total(post, found) == assignment.total(post, best)
    assert assignment.total(pre, found) > assignment.total(pre, best)


def test_sites_of_a_tied_word_are_averaged_or_one_is_chosen():
    network, fitted, data = built("resnet20")
    models = tuple(randomised(network.state_dict(), seed) for seed in range(2))
    problem = Problem(fitted, models, network=network, data=data)
    found = {which: similarities(problem, am.Options(sites=which))["post"] for which in looking.SITES}
    assert not torch.allclose(found["first"]["stage1"], found["last"]["stage1"])
    assert torch.allclose(found["first"]["inner1.0"], found["all"]["inner1.0"])
    sites = find(network, fitted, (data[0][0],), {}).of["stage1"]
    assert len(sites) == 4  # the stem and three blocks
    each = [Moments.none(fitted.words["stage1"], torch.device("cpu")) for _ in sites]
    for x, _ in data:
        graph = find(network, fitted, (x,), {})
        looked = [(site.post[0], sums) for site, sums in zip(graph.of["stage1"], each, strict=True)]
        watch(graph, models, ((x,), {}), looked, "cpu")
    mean = sum(sums.correlation() for sums in each) / 4
    assert torch.allclose(found["all"]["stage1"], mean, atol=1e-6)
    assert torch.allclose(found["last"]["stage1"], each[-1].correlation(), atol=1e-6)


def test_two_threads_add_up_the_same_bits():
    """A second thread is what is tested."""
    network, fitted, data = built("resnet20")
    models = tuple(randomised(network.state_dict(), seed) for seed in range(2))
    problem, found = Problem(fitted, models, network=network, data=data), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            found.append(similarities(problem, am.Options())["post"])
        finally:
            torch.set_num_threads(1)
    alone, together = found
    assert alone.keys() == together.keys() and all(torch.equal(alone[w], together[w]) for w in alone)


def test_all_is_added_up_when_a_batch_is_over():
    """Threads that are slow to add are what is tested."""
    network, fitted, data = built("mlp")
    models = tuple(randomised(network.state_dict(), seed) for seed in range(2))
    x = data[0][0].requires_grad_()
    graph, added = find(network, fitted, (x,), {}), []

    class Slow:
        def add(self, a: torch.Tensor, b: torch.Tensor) -> None:
            time.sleep(0.02)
            added.append((a, b))

    looked = [(site.post[0], Slow()) for sites in graph.of.values() for site in sites]
    with ThreadPoolExecutor(2) as pool:
        watch(graph, models, ((x,), {}), looked, "cpu", Beside(pool, 2))
        assert len(added) == len(looked) > 1
    assert not any(value.requires_grad for both in added for value in both)


def test_a_limit_cuts_the_last_batch_and_another_size_is_traced_anew():
    network, fitted, data = built("mlp")
    models = tuple(randomised(network.state_dict(), seed) for seed in range(2))
    few = [(x[:20], y[:20]) for x, y in [(torch.cat([x for x, _ in data]), torch.zeros(48))]]
    cut = similarities(Problem(fitted, models, network=network, data=data), am.Options(limit=20))
    whole = similarities(Problem(fitted, models, network=network, data=few), am.Options())
    for word in fitted.words:
        assert torch.allclose(cut["post"][word], whole["post"][word], atol=1e-6)


# ------------------------------------------------------------------------------------------ using it


def test_what_is_missing_is_said_at_once():
    network, fitted, data = built("mlp")
    model = network.state_dict()
    with pytest.raises(UsageError, match="lacks the network and training samples") as caught:
        rebasin_cli.align(model, model, fitted, method="am")
    assert "--net" in caught.value.hint and "--data" in caught.value.hint
    with pytest.raises(UsageError, match="it lacks training samples"):
        rebasin_cli.align(model, model, fitted, method="am", network=network)
    with pytest.raises(UsageError, match="two models, not 3"):
        am.match(Problem(fitted, (model,) * 3, network=network, data=data))


@pytest.mark.parametrize("wrong", [{"cost": "cosine"}, {"at": "after"}, {"sites": "some"}, {"limit": 0}])
def test_options_that_there_are_not_are_refused(wrong):
    with pytest.raises(UsageError):
        am.Options(**wrong)


def test_many_models_are_merged_and_a_barrier_is_measured_with_the_training_samples():
    network, fitted, data = built("mlp")
    data = [(x, torch.arange(16) % 5) for x, _ in data]
    model = randomised(network.state_dict(), 0)
    others = [shuffled(model, fitted, seed)[0] for seed in range(2)]
    merged = rebasin_cli.merge([model, *others], fitted, method="am", network=network, train=data)
    assert all(torch.allclose(merged.tensors[name], model[name], atol=1e-6) for name in model)
    report = rebasin_cli.barrier(
        model, others[0], fitted, network=network, test=data, train=data, method="am", points=3
    )
    assert report.match["method"] == "am"


def test_inputs_by_keyword_and_several_of_them_are_understood():
    network = Net(None, a=nn.Linear(3, 6), b=nn.Linear(2, 6), h=nn.Linear(6, 2))
    network.forward = lambda x, y: network.h(torch.relu(network.a(x) + network.b(y)))
    pair = [(x, torch.randn(16, 2)) for x, _ in batches(3)]
    fitted = infer(network, pair[0]).fitted
    model = randomised(network.state_dict(), 0)
    hidden, perm = shuffled(model, fitted)
    for inputs in (pair, [{"x": x, "y": y} for x, y in pair]):
        data = [(given, torch.zeros(16)) for given in inputs]
        found = am.match(Problem(fitted, (model, hidden), network=network, data=data))
        assert equal(found.permutations[0], permutation.invert(perm))


@pytest.mark.parametrize("name", ["a.weight", "b.weight"])
def test_a_file_with_either_name_of_a_tied_tensor_is_seen_as_one_with_both(name):
    def function(s, x):
        return s.out(torch.relu(s.hidden(torch.relu(s.a(x)))) + s.b(x))

    def model(seed):
        torch.manual_seed(seed)
        first = nn.Linear(5, 6, bias=False)
        net = Net(function, a=first, b=first, hidden=nn.Linear(6, 6), out=nn.Linear(6, 2))
        return net, {n: t.clone() for n, t in net.state_dict().items()}

    (net, one), (_, other) = model(0), model(1)
    both, data = infer(net, (torch.randn(3, 5),)).fitted, batches(5)
    plain = replace(both, tensors={n: a for n, a in both.tensors.items() if n != name})
    without = [{n: t for n, t in state.items() if n != name} for state in (one, other)]
    whole = am.match(Problem(both, (one, other), network=net, data=data))
    found = am.match(Problem(plain, tuple(without), network=net, data=data))
    assert found.permutations[0].keys() == both.words.keys() != set()
    for word, order in whole.permutations[0].items():
        assert torch.equal(found.permutations[0][word], order)
