"""A proof believes specs that keep the function, and no others."""

import math
import re

import pytest
import torch
from torch import nn

from rebasin_cli.errors import NetworkError, NotProven, SpecError, UsageError
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import Word
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import Block
from rebasin_cli.symmetry import index_maps, permutation


class Net(nn.Module):
    """Two convolutions, the first with a norm, flattened into a head; `change` spoils the output."""

    def __init__(self, change=lambda logits: logits, units: int = 4):
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, units, 3, padding=1), nn.BatchNorm2d(units)
        self.two = nn.Conv2d(units, 5, 3, padding=1)
        self.head = nn.Linear(5 * 16, 6)
        self.change = change

    def forward(self, x):
        x = torch.relu(self.norm(self.one(x)))
        return self.change(self.head(torch.relu(self.two(x)).flatten(1)))


GOOD = {
    "one.weight": "a . . .",
    "one.bias": "a",
    "norm.weight": "a",
    "norm.bias": "a",
    "two.weight": "b a . .",
    "two.bias": "b",
    "head.weight": ". (b _)",
    "head.bias": ".",
    "norm.running_mean": "a",
    "norm.running_var": "a",
    "norm.num_batches_tracked": "",
}
INPUTS = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def spec_for(network: nn.Module, axes: dict[str, str], sizes: dict[str, int] | None = None):
    lines = "".join(f"  {name}: '{text}'\n" for name, text in axes.items())
    said = "".join(f"  {word}: {size}\n" for word, size in (sizes or {}).items())
    text = (f"sizes:\n{said}" if said else "") + f"tensors:\n{lines}"
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    return fit(parse(text, name="test", source="test.yaml"), shapes)


def try_to_prove(axes: dict[str, str], network: nn.Module | None = None, **options):
    network = Net() if network is None else network
    return prove(network, spec_for(network, axes), INPUTS, **options)


def test_a_good_spec_is_proven_and_says_how_well():
    proof = try_to_prove(GOOD)
    assert 0 < proof.largest_difference < 1e-12 and proof.trials == 2 and proof.words == {}
    each = try_to_prove(GOOD, each_word=True)
    assert each.words.keys() == {"a", "b"} and max(each.words.values()) < 1e-12


@pytest.mark.parametrize("trials", [0, -1])
def test_no_trial_is_no_proof(trials):
    with pytest.raises(UsageError, match="prove nothing"):
        try_to_prove(GOOD | {"one.bias": "."}, trials=trials)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"head.weight": ". (_ b)"}, ["b"]),  # the factors of the flattened axis swapped
        ({"one.bias": "."}, ["a"]),  # forgotten
        ({"norm.weight": "."}, ["a"]),
        ({"norm.running_mean": "."}, ["a"]),
        ({"norm.running_var": "."}, ["a"]),
        ({"two.weight": "b . . ."}, ["a"]),
        ({"head.weight": ". ."}, ["b"]),
        ({"one.bias": "c"}, ["a", "c"]),  # torn off
        ({"head.bias": "out", "head.weight": "out (b _)"}, ["out"]),  # the logits
        ({"one.weight": "a in . ."}, ["in"]),  # the inputs
        ({"one.weight": "a . k ."}, ["k"]),  # a kernel
    ],
)
def test_a_wrong_spec_is_not_proven_and_the_words_are_named(wrong, words):
    with pytest.raises(NotProven) as caught:
        try_to_prove(GOOD | wrong)
    assert sorted(problem.split('"')[1] for problem in caught.value.problems) == words
    assert "test.yaml does not preserve the network's function" in caught.value.message


def test_two_words_joined_wrongly_are_not_proven():
    network = Net(units=5)
    joined = {name: axes.replace("b", "a") for name, axes in GOOD.items()}
    try_to_prove(joined, network)  # the same permutation of both layers keeps the function
    with pytest.raises(NotProven) as caught:
        try_to_prove(GOOD | {"two.weight": "a b . ."}, network)
    assert len(caught.value.problems) == 2


def test_an_axis_swapped_is_not_proven():
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    good = {"0.weight": "h .", "0.bias": "h", "2.weight": ". h", "2.bias": "."}
    inputs = torch.rand(3, 4)
    prove(network, spec_for(network, good), inputs)
    with pytest.raises(NotProven):
        prove(network, spec_for(network, good | {"2.weight": "h ."}), inputs)


def test_words_of_two_units_are_caught_with_every_seed():
    network = Net(units=2)
    for seed in range(20):
        with pytest.raises(NotProven):
            try_to_prove(GOOD | {"one.bias": "."}, network, seed=seed, trials=1)


def test_a_zero_initialised_head_hides_no_mistake():
    network = Net()
    with torch.no_grad():
        for tensor in (network.head.weight, network.head.bias, network.norm.weight):
            tensor.zero_()
    try_to_prove(GOOD, network)
    for wrong in ({"two.weight": "b . . ."}, {"norm.bias": "."}, {"head.weight": ". ."}):
        with pytest.raises(NotProven):
            try_to_prove(GOOD | wrong, network)


def test_every_trial_counts():
    """A mistake that only the second draw of weights brings to light is a mistake."""
    runs = []

    class Late(Net):
        def forward(self, x):
            runs.append(None)
            logits = super().forward(x)
            first = 4  # runs of the first draw: two words of few units in turn
            return logits + self.one.bias[0] if len(runs) > first else logits

    with pytest.raises(NotProven):
        try_to_prove(GOOD, Late(), trials=2)
    runs.clear()
    assert try_to_prove(GOOD, Late(), trials=1).trials == 1


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda logits: logits / 0 * 0, "NaN or infinite"),
        (lambda logits: logits * 0 + 1, "answers every input alike"),
        (lambda logits: logits.sum() * 0, "answers every input alike"),
        (lambda logits: (-logits.abs()).relu(), "answers every input alike"),
        (lambda logits: logits * 0 + torch.arange(logits.shape[1]), "answers every input alike"),
        (lambda logits: None, "returns no tensor"),
        (lambda logits: logits.reshape(7, 7, 7), "the network fails on inputs"),
    ],
)
def test_outputs_that_say_nothing_are_the_networks_fault(change, complaint):
    with pytest.raises(NetworkError, match=complaint):
        try_to_prove(GOOD, Net(change))


@pytest.mark.parametrize("wrap", [lambda t: (t, 2 * t), lambda t: {"logits": t, "extra": [t]}])
def test_outputs_and_inputs_may_be_structures(wrap):
    try_to_prove(GOOD, Net(wrap))
    with pytest.raises(NotProven):
        try_to_prove(GOOD | {"one.bias": "."}, Net(wrap))
    network = Net()
    spec = spec_for(network, GOOD)
    assert (
        prove(network, spec, {"x": INPUTS}).largest_difference
        == prove(network, spec, (INPUTS,)).largest_difference
    )


class Telling(Net):
    """Returns its logits and its hidden units, in the form that `wrap` makes of them."""

    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(super().forward(x), self.one(x))


def test_all_that_is_returned_is_compared_whatever_is_measured():
    wraps = [
        (lambda logits, hidden: {"logits": logits, "hidden": hidden}, "logits", "hidden"),
        (lambda logits, hidden: (hidden, [logits]), "1", "0"),
        (lambda logits, hidden: (logits, hidden), -2, "1"),
    ]
    for wrap, output, other in wraps:
        network = Telling(wrap)
        for measured in (None, output):
            with pytest.raises(NotProven) as refused:
                try_to_prove(GOOD, network, output=measured)
            assert f"of the outputs these change: {other}" in refused.value.problems
        proof = try_to_prove(GOOD, network, output=output, not_kept=[other])
        assert 0 < proof.largest_difference < 1e-12 and proof.not_kept == (other,)
        with pytest.raises(NotProven):
            try_to_prove(GOOD | {"one.bias": "."}, network, output=output, not_kept=[other])
        with pytest.raises(NetworkError, match="the network returns .*, which has no 'absent'"):
            try_to_prove(GOOD, network, output="absent")


def test_a_network_of_other_tensors_proves_nothing():
    network = Net()
    spec = spec_for(network, GOOD | {"one.bias": "."})
    wrapped = nn.ModuleDict({"module": network})
    wrapped.forward = network.forward
    with pytest.raises(NetworkError, match="is not the network of this checkpoint"):
        prove(wrapped, spec, INPUTS)


class Tied(nn.Module):
    """One matrix that embeds and, as the same parameter, reads out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(torch.relu(self.mix(self.embed(tokens))) + self.embed(tokens))


TIED = {"embed.weight": ". h", "mix.weight": "h h", "mix.bias": "h", "out.weight": ". h"}
TOKENS = torch.tensor([[1, 2], [5, 6]])


def test_tied_parameters_are_permuted_once():
    network = Tied()
    assert prove(network, spec_for(network, TIED), TOKENS).largest_difference < 1e-12
    assert network.out.weight is network.embed.weight


@pytest.mark.parametrize("name", ["embed.weight", "out.weight"])
def test_tied_parameters_with_different_words_are_not_proven(name):
    """Written under its two names, the tensor would be two tensors."""
    network = Tied()
    with pytest.raises(NotProven, match="tear tied tensors apart") as caught:
        prove(network, spec_for(network, TIED | {name: ". ."}), TOKENS)
    assert f'{name}  is "7 4"' in caught.value.problems


def test_the_network_is_left_as_it_was():
    network = Net().train()
    network.norm.eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    try_to_prove(GOOD, network)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert network.training and not network.norm.training
    assert next(network.parameters()).dtype == torch.float32


def test_half_precision_networks_are_proven_in_float64():
    assert try_to_prove(GOOD, Net().bfloat16()).largest_difference < 1e-12


def test_the_same_seed_proves_the_same():
    assert try_to_prove(GOOD, seed=1) == try_to_prove(GOOD, seed=1)
    assert try_to_prove(GOOD, seed=1).largest_difference != try_to_prove(GOOD, seed=2).largest_difference


def test_the_permutation_that_is_proven_is_the_one_that_is_applied():
    """The proof moves tensors with the function that writes files."""
    network = Net()
    spec = spec_for(network, GOOD)
    perms = permutation.random(spec.words, torch.Generator().manual_seed(0))
    moved = Net().double().eval()
    moved.load_state_dict(dict(permutation.permuted(network.double().state_dict(), spec, perms)))
    torch.testing.assert_close(moved(INPUTS.double()), network.eval()(INPUTS.double()))


# ----------------------------------------------------------------------------------- several sets of inputs


class Sided(Net):
    """A mistake that counts only where an input is negative, as none of those given is."""

    def forward(self, x):
        return super().forward(x) + self.one.bias @ torch.arange(4.0).to(x) * torch.relu(-x.min())


def test_a_mistake_that_the_given_inputs_hide_is_found_with_others():
    try_to_prove(GOOD, Sided(), trials=1)
    with pytest.raises(NotProven) as caught:
        try_to_prove(GOOD, Sided(), trials=2)
    assert [problem.split('"')[1] for problem in caught.value.problems] == ["a"]


def test_each_word_has_its_largest_difference_of_all_trials():
    words = try_to_prove(GOOD, Sided(), each_word=True, tolerance=math.inf).words
    assert words["a"] > 1e-3 and words["b"] < 1e-12


class Seen(list):
    """What a module was given; a plain list would be forgotten with all that a run leaves behind."""


class Watched(nn.Module):
    """Keeps what it is given."""

    def __init__(self, largest: float = math.inf):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)
        self.largest, self.seen = largest, Seen()

    def forward(self, x, ids, mask):
        if x.max() > self.largest:
            raise ValueError("too large")
        self.seen.append((x, ids, mask))
        return self.second(torch.relu(self.first(x))) + ids[:, :2] * mask[:, :2].double().clamp(-1, 1)


WATCHED = {"first.weight": "h .", "first.bias": "h", "second.weight": ". h", "second.bias": "."}
BATCH = {
    "x": 5 + 3 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0)),
    "ids": torch.arange(256).view(64, 4),
    "mask": torch.arange(256).view(64, 4) % 3 == 0,
}


def test_beside_the_given_inputs_others_of_the_same_kind_are_drawn():
    network = Watched()
    prove(network, spec_for(network, WATCHED), BATCH)
    x, ids, mask = network.seen[-1]
    assert torch.equal(x, BATCH["x"].double()) and torch.equal(ids, BATCH["ids"])
    other, others, same = next(seen for seen in network.seen if not torch.equal(seen[0], x))
    assert other.dtype == torch.float64 and other.shape == x.shape and not torch.equal(other, x)
    assert other.mean() == pytest.approx(5, abs=0.6) and other.std() == pytest.approx(3, abs=0.6)
    assert not torch.equal(others, ids) and torch.equal(others.flatten().sort().values, ids.flatten())
    assert torch.equal(same, mask)


@pytest.mark.parametrize("mask", [torch.ones(4, 4), torch.zeros(4, 4), torch.full((4, 4), -math.inf).triu()])
def test_masks_of_floating_point_stay_as_they_are(mask):
    network = Watched()
    prove(network, spec_for(network, WATCHED), BATCH | {"mask": mask.repeat(16, 1)})
    for seen in network.seen:  # but for the last digit, by which rounding is measured
        torch.testing.assert_close(seen[2].double(), mask.double().repeat(16, 1), rtol=1e-15, atol=0)
    assert not all(torch.equal(seen[0], network.seen[-1][0]) for seen in network.seen)


def test_inputs_that_the_network_refuses_are_not_forced_on_it():
    network, x = Watched(largest=1), torch.rand(64, 4)
    assert prove(network, spec_for(network, WATCHED), BATCH | {"x": x}).trials == 2
    assert torch.equal(network.seen[-1][0], x.double())


# ---------------------------------------------------------------------------------- mutations of good specs


class Residual(nn.Module):
    """A stem and a residual block of convolutions and norms; everything has four channels."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.one, self.norm1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.two, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.norm2(self.two(torch.relu(self.norm1(self.one(x))))))
        return self.head(x.mean((2, 3)))


RESIDUAL = {
    "stem.weight": "c . . .",
    "one.weight": "inner c . .",
    "two.weight": "c inner . .",
    "head.weight": ". c",
    "head.bias": ".",
} | {
    f"{norm}.{name}": word if name != "num_batches_tracked" else ""
    for norm, word in {"norm": "c", "norm1": "inner", "norm2": "c"}.items()
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"one.weight": "c inner . ."},  # axes swapped
        {"two.weight": "inner c . ."},
        {"head.weight": "c ."},
        {"norm.running_var": "."},  # forgotten
        {"norm2.running_mean": "."},
        {"norm1.weight": "."},
        {"stem.weight": ". . . ."},
        {"two.weight": "c . . ."},
        {"one.weight": "c c . ."},  # joined
        {"norm1.running_mean": "c"},
        {"two.weight": "inner inner . ."},
        {"head.weight": "logits c", "head.bias": "logits"},
    ],
    ids=str,
)
def test_a_mutated_spec_of_a_residual_network_is_not_proven(wrong):
    network = Residual()
    prove(network, spec_for(network, RESIDUAL), INPUTS)
    with pytest.raises(NotProven):
        prove(network, spec_for(network, RESIDUAL | wrong), INPUTS)


class Attention(nn.Module):
    """One block of attention in a residual stream; key and value heads serve `rep` query heads each."""

    def __init__(self, kv: int, dim: int, value: int, rep: int = 1, norm: bool = False, width: int = 7):
        super().__init__()
        self.kv, self.rep = kv, rep
        self.embed, self.head = nn.Embedding(9, width), nn.Linear(width, 6)
        self.q, self.k = nn.Linear(width, kv * rep * dim), nn.Linear(width, kv * dim)
        self.v, self.out = nn.Linear(width, kv * value), nn.Linear(kv * rep * value, width)
        self.norm = nn.RMSNorm(dim) if norm else nn.Identity()  # one weight for all heads

    def forward(self, tokens):
        x = self.embed(tokens)
        q = self.norm(self.q(x).unflatten(-1, (self.kv, self.rep, -1)))
        k, v = (part(x).unflatten(-1, (self.kv, 1, -1)) for part in (self.k, self.v))
        scores = torch.einsum("btgrd,bsgrd->bgrts", q, self.norm(k).expand_as(q))
        mixed = torch.einsum("bgrts,bsgrd->btgrd", scores.softmax(-1), v.expand(*q.shape[:4], -1))
        return self.head(x + self.out(mixed.flatten(2)))


OUTSIDE = {"embed.weight": ". x", "head.weight": ". x", "head.bias": "."}


def attention_spec(q: str, k: str, v: str, out: str) -> dict[str, str]:
    axes = OUTSIDE | {"out.weight": f"x {out}", "out.bias": "x"}
    for name, word in {"q": q, "k": k, "v": v}.items():
        axes |= {f"{name}.weight": f"{word} x", f"{name}.bias": word}
    return axes


def prove_attention(network: nn.Module, axes: dict[str, str], sizes: dict[str, int], **options):
    return prove(network, spec_for(network, axes, sizes=sizes), SENTENCES, **options)


SENTENCES = torch.tensor([[1, 2, 5, 8], [5, 6, 0, 3]])
HEADS = attention_spec("(heads dim*)", "(heads dim*)", "(heads value*)", "(heads value*)")


def test_attention_with_an_order_in_each_head_is_proven():
    proof = prove_attention(Attention(3, 4, 4), HEADS, {"heads": 3}, each_word=True)
    assert proof.words.keys() == {"heads", "dim", "value", "x"} and max(proof.words.values()) < 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        {"q.weight": "x (heads dim*)", "k.weight": "x (heads dim*)"},  # axes swapped
        {"out.weight": "(heads value*) x"},
        {"out.weight": "x (4 heads)"},
        {"q.bias": "."},  # forgotten
        {"k.weight": ". x"},
        {"v.bias": "."},
        {"out.weight": "x ."},
        {"out.weight": "x (heads dim*)"},  # joined
        {"v.bias": "(heads dim*)"},
        {"q.weight": "(heads other*) x", "q.bias": "(heads other*)"},  # q and k ordered differently
        {"q.weight": "(3 other*) x", "q.bias": "(3 other*)"},
        {"k.weight": "(more 4) x", "k.bias": "(more 4)"},
        {"head.weight": "logits x", "head.bias": "logits"},
    ],
    ids=str,
)
def test_a_mutated_spec_of_attention_is_not_proven(wrong):
    network = Attention(3, 4, 4, width=12)
    prove_attention(network, HEADS, {"heads": 3})
    with pytest.raises(NotProven):
        prove_attention(network, HEADS | wrong, {"heads": 3})


@pytest.mark.sweep
def test_what_all_heads_share_has_one_order():
    """A norm's weight of one head's size: the order within is the same for every head."""
    network = Attention(2, 2, 5, norm=True)
    value = "(heads value*)"
    shared = attention_spec("(heads dim)", "(heads dim)", value, value) | {"norm.weight": "dim"}
    prove_attention(network, shared, {"heads": 2})
    for seed in range(20):  # two orders of two units would be alike every other time
        with pytest.raises(NotProven) as caught:
            prove_attention(network, HEADS | {"norm.weight": "."}, {"heads": 2}, seed=seed, trials=1)
        assert [problem.split('"')[1] for problem in caught.value.problems] == ["dim"]


GROUPS = attention_spec("(kv rep* dim*)", "(kv dim*)", "(kv value*)", "(kv rep* value*)")


def test_key_and_value_groups_move_with_their_query_heads():
    network = Attention(2, 4, 5, rep=3)
    proof = prove_attention(network, GROUPS, {"kv": 2, "rep": 3}, each_word=True)
    assert proof.words.keys() == {"kv", "rep", "dim", "value", "x"} and proof.largest_difference < 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        {"q.weight": "(kv rep* other*) x", "q.bias": "(kv rep* other*)"},
        {"out.weight": "x (kv rep* other*)"},
        {"out.weight": "x (more kv value*)"},
        {"q.weight": "(kv 3 dim*) x"},
        {"q.bias": "(kv rep* 4)"},
    ],
    ids=str,
)
def test_a_mutated_spec_of_grouped_queries_is_not_proven(wrong):
    with pytest.raises(NotProven):
        prove_attention(Attention(2, 4, 5, rep=3), GROUPS | wrong, {"kv": 2, "rep": 3})


class Grouped(nn.Module):
    """A convolution of two groups between two others."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 8, 3, groups=2)
        self.head = nn.Conv2d(8, 5, 2)

    def forward(self, x):
        return self.head(torch.relu(self.two(torch.relu(self.one(x))))).flatten(1)


GROUPED = {
    "one.weight": "(g i*) . . .",
    "one.bias": "(g i*)",
    "two.weight": "(g o*) i* . .",
    "two.bias": "(g o*)",
    "head.weight": ". (g o*) . .",
    "head.bias": ".",
}


def test_channels_of_a_grouped_convolution_are_ordered_in_each_group():
    network = Grouped()
    proof = prove(network, spec_for(network, GROUPED, sizes={"g": 2}), INPUTS, each_word=True)
    assert proof.words.keys() == {"g", "i", "o"} and proof.largest_difference < 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        {"two.weight": "(g o*) 3 . ."},
        {"two.weight": "(g other*) i* . ."},
        {"two.bias": "(g 4)"},
        {"one.bias": "(g other*)"},
        {"head.weight": ". (g other*) . ."},
    ],
    ids=str,
)
def test_a_mutated_spec_of_a_grouped_convolution_is_not_proven(wrong):
    network = Grouped()
    with pytest.raises(NotProven):
        prove(network, spec_for(network, GROUPED | wrong, sizes={"g": 2}), INPUTS)


def test_the_manuals_example_of_attention_is_proven():
    text = (library.folder() / "README.md").read_text(encoding="utf-8")
    example = next(block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "heads" in block)
    network = Attention(12, 2, 3)
    outside = "".join(f"  {name}: '{axes.replace('x', '.')}'\n" for name, axes in OUTSIDE.items())
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    fitted = fit(parse(example + outside, name="example"), shapes)
    assert fitted.words == {"heads": 12, "dim": 24, "value": 36}
    assert prove(network, fitted, SENTENCES, each_word=True).largest_difference < 1e-12


class Token(nn.Module):
    """A learned token, repeated for every sample and set before the others."""

    def __init__(self):
        super().__init__()
        self.token, self.up, self.down = nn.Parameter(torch.zeros(1, 1, 6)), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.down(torch.cat([self.token.expand(len(x), -1, -1), self.up(x)], dim=1).relu())


def test_a_parameter_that_is_expanded_is_drawn_like_others():
    net = Token()
    fitted = fit(
        parse(
            'tensors: {"token": ". . h", up.weight: "h .", up.bias: "h", down.weight: ". h", down.bias: "."}',
            name="token",
        ),
        {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()},
    )
    assert prove(net, fitted, torch.randn(3, 5, 4)).largest_difference < 1e-12


class Stretched(nn.Module):
    """Each row is repeated as often as the network says, some 5 times; random weights ask for none."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.length = nn.Linear(3, 6), nn.Linear(6, 2), nn.Linear(3, 1)
        with torch.no_grad():
            self.length.weight.copy_(torch.tensor([[1.0, -1.0, 0.5]]))
            self.length.bias.fill_(5.0)

    def forward(self, x):
        counts = self.length(x).round().long().squeeze(-1)
        if int(counts.min()) < 1:
            raise ValueError("no such length")
        return self.two(torch.relu(self.one(x))).repeat_interleave(counts, 0)


def test_what_fails_on_random_weights_is_proven_near_its_own():
    net, x = Stretched(), torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    words = {"one.weight": "h .", "one.bias": "h", "two.weight": ". h", "two.bias": "."}
    words |= {"length.weight": ". .", "length.bias": "."}
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert prove(net, spec_for(net, words), x).largest_difference < 1e-12
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with pytest.raises(NotProven):
        prove(net, spec_for(net, words | {"two.weight": ". ."}), x)


def test_a_star_without_what_it_lies_within_is_told():
    axes = (Word("h"), Word("d", each=True))
    within = {"d": Block("heads", 2, 3)}
    with pytest.raises(SpecError, match="no other axis"):
        index_maps.indices_of((4, 6), axes, {"h": torch.arange(4), "d": torch.arange(6)}, within)


# ---------------------------------------------------------------------------------------- training mode


class Training(nn.Module):
    """Two layers and a norm; `more` says what training does to the hidden units, or returns of them."""

    def __init__(self, more):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.aux, self.more = nn.Linear(8, 2), more

    def forward(self, x):
        hidden = torch.relu(self.norm(self.one(x)))
        if not self.training:
            return self.two(hidden)
        found = self.more(self, hidden)
        return found if isinstance(found, tuple) else self.two(found)


def put(module, name, tensor):
    """Another tensor in the place of one that the module has."""
    setattr(module, name, nn.Parameter(tensor) if name == "weight" else tensor)
    return getattr(module, name)


TRAINED = {
    "one.weight": "h .",
    "one.bias": "h",
    "norm.weight": "h",
    "norm.bias": "h",
    "norm.running_mean": "h",
    "norm.running_var": "h",
    "norm.num_batches_tracked": "",
    "two.weight": ". h",
    "two.bias": ".",
    "aux.weight": ". .",
    "aux.bias": ".",
}


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize(
    ("more", "told"),
    {
        "nothing": (lambda net, h: h, ()),
        "dropout": (lambda net, h: nn.functional.dropout(h, 0.5), ()),
        "dropped paths": (lambda net, h: h * h.new_empty(len(h), 1).bernoulli_(0.5), ()),
        "noise": (lambda net, h: h + torch.randn_like(h) + torch.rand(8), ()),
        "noise without a mean here": (lambda net, h: h + torch.empty(8).exponential_(), ()),
        "statistics": (lambda net, h: h - h.mean(0) / 2, ()),
        "a table": (lambda net, h: h * torch.linspace(0.5, 1.5, 8), ("output",)),
        "a table, and some noise": (
            lambda net, h: h * torch.linspace(0.5, 1.5, 8) * (1 + 1e-9 * torch.empty(8).exponential_()),
            (),  # what is random tells nothing
        ),
        "another head": (lambda net, h: (net.two(h), net.aux(h)), ("1",)),
        "a failure": (lambda net, h: net.two(h)[9999], ()),
        "rounding": (lambda net, h: (torch.sin(1e11 * net.two(h)),), ()),
        "another weight": (lambda net, h: (put(net.two, "weight", 2 * net.two.weight.detach()), h)[1], ()),
    }.values(),
)
def test_what_stays_in_evaluation_alone_is_told_and_what_is_random_is_not(more, told, samples):
    network = Training(more)
    inputs = torch.randn(samples, 5, generator=torch.Generator().manual_seed(0))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    proof = prove(network, spec_for(network, TRAINED), inputs)
    assert proof.not_in_training == told
    assert network.training and all(module.training for module in network.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


class Dropping(nn.Module):
    """Two layers, and what `drop` makes of their units."""

    def __init__(self, drop):
        super().__init__()
        self.a, self.b, self.o, self.q = (nn.Linear(*sizes) for sizes in ((4, 6), (4, 6), (6, 3), (6, 3)))
        self.drop = drop

    def forward(self, x):
        a, b = self.drop(self.a(x), self.b(x))
        return self.o(a) + self.q(b)


def by_one(mask):
    """What multiplies both layers by one mask."""

    def drop(a, b):
        drawn = mask(a)
        return a * drawn, b * drawn

    return drop


def by_what_is_left(told):
    """One layer's dropout, and the other multiplied by what it tells of the entries that are left."""

    def drop(a, b):
        left = nn.functional.dropout(a.sigmoid(), 0.5, True)
        return left, b * told(left).to(b.dtype)

    return drop


APART = {
    "a.weight": "a .", "a.bias": "a", "b.weight": "b .", "b.bias": "b",
    "o.weight": ". a", "o.bias": ".", "q.weight": ". b", "q.bias": ".",
}  # fmt: skip
SHARED_CHANCE = {
    "of ones": by_one(lambda a: nn.functional.dropout(torch.ones(5, 6), 0.5, True)),
    "in a row": by_one(lambda a: nn.functional.dropout(torch.ones(6), 0.5, True)),
    "of one column": by_one(lambda a: nn.functional.dropout(a[:, :1].expand(5, 6), 0.5, True)),
    "as drawn": by_one(lambda a: torch.empty(5, 6).bernoulli_(0.5)),
    "told by comparing": by_what_is_left(lambda left: left > 0),
    "told by truth": by_what_is_left(lambda left: left.bool()),
    "told by signs": by_what_is_left(torch.sign),
    "told by rounding up, of a view": by_what_is_left(lambda left: left.view(-1).relu().ceil().view(5, 6)),
    "told by zeros": by_what_is_left(lambda left: torch.where(left == 0, 0.0, 1.0)),
    "of truths": by_one(lambda a: (torch.empty(5, 6).bernoulli_(0.5) > 0.2).double()),
}


@pytest.mark.parametrize("drop", SHARED_CHANCE.values(), ids=SHARED_CHANCE)
def test_chance_that_two_layers_share_is_no_proof_of_two_orders(drop):
    network = Dropping(drop)
    with pytest.raises(NotProven, match="several layers are to share the same chance"):
        prove(network, spec_for(network, APART), torch.randn(5, 4))


def test_chance_of_each_layer_its_own_changes_nothing():
    dropout = nn.functional.dropout
    network = Dropping(
        lambda a, b: (dropout(a, 0.5, True).relu(), dropout(b.relu(), 0.3, True) * b.sigmoid())
    )
    assert prove(network, spec_for(network, APART), torch.randn(5, 4)).largest_difference < 1e-12
