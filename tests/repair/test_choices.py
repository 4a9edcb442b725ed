"""Which merge is taken: on cases of benchmarks/regret.py, and of single figures."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from rebasin_cli.errors import NetworkError
from rebasin_cli.networks.evaluation import Scores, evaluate
from rebasin_cli.networks.forward import check_runs
from rebasin_cli.repair.choices import Comparison, Measured, better, choose, gained
from rebasin_cli.repair.ensemble import Agreement
from rebasin_cli.types import Quantity

# Of every candidate: its held-out loss, its distance to the endpoints' mean answer there, its test loss.
CASES = {
    "characters, mlp 128": {
        "wm": (2.146, 0.001212, 2.462),
        "wm + repair": (2.123, 0.00155, 2.445),
        "wm + refit": (2.121, 0.0002335, 2.444),
        "wm + distill": (2.117, 8.202e-05, 2.442),
        "am": (2.152, 0.001761, 2.461),
    },
    "characters, mlp 16 with BatchNorm": {
        "wm + reset": (1.689, 0.1344, 2.326),
        "wm + refit": (1.699, 0.1147, 2.296),
        "wm + distill": (1.682, 0.07807, 2.27),
        "am + reset": (1.712, 0.1451, 2.346),
        "am + refit": (1.724, 0.1253, 2.296),
    },
    "MNIST, mlp 32 with BatchNorm": {
        "wm + reset": (0.1208, 0.06388, 0.3386),
        "wm + refit": (0.08925, 0.03369, 0.3017),  # the least loss, of samples known by heart
        "wm + distill": (0.09003, 0.02173, 0.2846),
        "am + reset": (0.1531, 0.07715, 0.331),
    },
    "CIFAR-10, mlp 128 with LayerNorm": {
        "wm": (0.3689, 0.06703, 2.116),  # again the least loss
        "wm + refit": (0.3887, 0.06142, 2.084),
        "wm + distill": (0.3888, 0.05206, 2.082),
        "am": (0.4497, 0.09535, 2.099),
    },
    "MNIST, mlp 32": {
        "wm": (0.1708, 0.02796, 0.392),
        "wm + repair": (0.1641, 0.02796, 0.3955),
        "wm + distill": (0.1204, 0.007209, 0.3936),
        "am + refit": (0.1217, 0.007975, 0.3941),
    },
}


def measured(loss, apart=None, spread=0.0, samples=100, **more):
    """Held-out figures of a merge, whose samples lose `loss` and, every other one, `spread` more or less."""
    each = loss + spread * torch.tensor([1.0, -1.0]).repeat(samples // 2)
    scores = Scores(loss, {"hits": 0.5}, samples, each={"loss": each}, **more)
    return Measured(scores, None if apart is None else torch.full((samples,), apart, dtype=torch.float64))


@pytest.mark.parametrize("case", CASES)
def test_on_recorded_cases_the_taken_one_is_next_to_the_best_on_test_data(case):
    found = {name: measured(loss, apart) for name, (loss, apart, _) in CASES[case].items()}
    for order in (list(found), list(reversed(found))):
        taken = functools.reduce(lambda one, it: it if better(found[one], found[it]) else one, order)
        assert CASES[case][taken][2] - min(test for *_, test in CASES[case].values()) <= 0.003


def test_of_equals_the_first_stays_and_what_is_no_number_is_never_taken():
    assert not better(measured(0.5, 0.1), measured(0.5, 0.1))
    assert not better(measured(0.5), measured(0.5 - 1e-8)) and better(measured(0.5), measured(0.4999))
    for broken in (math.inf, math.nan):
        assert not better(measured(0.5, 0.1), measured(broken))
        assert better(measured(broken), measured(0.5, 0.1))
        assert gained(measured(broken), measured(0.5))[0] == math.inf
        assert gained(measured(broken), measured(broken))[0] == 0


def comparison(ends, held, **how):
    """Of a network that multiplies its inputs by a factor."""

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.factor * x

    endpoints = [{"factor": torch.tensor(factor)} for factor in ends]
    shares = [1 / max(1, len(ends))] * len(ends)
    return Comparison(Line(), endpoints, shares, held, evaluate, None, "cpu", **how), Line()


def test_what_is_left_to_gain_is_what_the_endpoints_mean_loses_less():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    held = [(part, part.argmax(1)) for part in x.split(20)]
    compared, network = comparison([2.0, 4.0], held)
    found = compared.measure(network, None)
    mean = (2 * x).softmax(1) / 2 + (4 * x).softmax(1) / 2
    assert compared.agreement.loss == pytest.approx(functional.nll_loss(mean.log(), x.argmax(1)).item())
    assert compared.left(found) == pytest.approx(found.cost - compared.agreement.loss) and found.distance > 0
    for other, why in (
        (comparison([2.0, 4.0], held, unseen=True), "others may be better than the mean"),
        (comparison([], held), "no endpoints are known"),
        (comparison([2.0, 4.0], held, by="accuracy"), "a metric decides"),
        (comparison([1e4, 2e4], [(x, x.argmin(1))]), "they are infinitely wrong"),
    ):
        assert other[0].left(other[0].measure(other[1], None)) == math.inf, why
    compared, lost = comparison([2.0, 4.0], held)
    lost.factor.data.fill_(math.nan)
    assert compared.measure(lost, None).apart is None, "what is no number is at no distance"


def test_of_very_many_outputs_the_distance_is_of_the_first_batches():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    held = [(part, part.argmax(1)) for part in x.split(20)]
    network, ends = comparison([2.0, 4.0], held)[1], [{"factor": torch.tensor(f)} for f in (2.0, 4.0)]
    for memory, samples in ((0, 0), (240, 20), (500, 40), (1 << 20, 60)):
        some = Agreement(network, ends, [0.5, 0.5], held, memory=memory)
        assert len(some.apart(network)) == samples
    some = Measured(evaluate(network, held, each=True), some.apart(network)[:20])
    assert comparison([2.0, 4.0], held)[0].left(some) == math.inf


def test_what_decides_is_told_with_its_standard_error():
    gain, error = gained(measured(0.5, 0.1, 0.2), measured(0.4, 0.05))
    assert gain == pytest.approx(0.2) and error == pytest.approx(0.2 / math.sqrt(99), rel=1e-4)
    few = Measured(measured(0.5).plain, torch.tensor([0.1]))  # the distance is known of some alone
    assert gained(few, few)[0] == 0 and math.isnan(gained(few, few)[1])


def test_where_a_metric_decides_no_distance_counts():
    for larger in (True, False):
        quantities = (Quantity("cents"), Quantity("hits", larger_is_better=larger))
        one, other = (
            Measured(Scores(0.5, {"hits": hits}, 10, quantities=quantities), by="hits") for hits in (0.5, 0.6)
        )
        assert better(one, other) is larger and better(other, one) is not larger


def test_a_gain_by_a_metric_has_its_sign_in_every_sample():
    each = torch.tensor([0.0, 1.0, 1.0, 0.0])
    found = [
        Measured(
            Scores(0.5, {"hits": 0.5}, 4, each={"hits": its}, quantities=(Quantity("cents"), q)), by="hits"
        )
        for its, q in (
            (each, Quantity("hits", larger_is_better=True)),
            (each, Quantity("hits", larger_is_better=False)),
        )
    ]
    assert torch.equal(found[0].each, -each.double()) and torch.equal(found[1].each, each.double())


def test_endpoints_count_by_their_weights_and_less_on_samples_that_they_never_saw():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    held = [(part, part.argmax(1)) for part in x.split(20)]
    network, ends = comparison([2.0, 4.0], held)[1], [{"factor": torch.tensor(f)} for f in (2.0, 4.0)]
    mean = 0.25 * (2 * x).softmax(1) + 0.75 * (4 * x).softmax(1)
    torch.testing.assert_close(torch.cat(Agreement(network, ends, [0.25, 0.75], held).wanted), mean)
    pulls = [comparison([2.0, 4.0], held, unseen=u)[0].measure(network, None).pull for u in (False, True)]
    assert pulls[0] > pulls[1] > 0


def test_a_figure_without_end_is_never_the_best():
    """A loss of -inf is as far from any choice as one of inf."""
    for value in (math.inf, -math.inf, math.nan):
        assert Measured(Scores(value, {}, 1)).lost == math.inf


class Counting(nn.Linear):
    """A network of the user's that fails in its forward pass from some run on."""

    def __init__(self, fails, why):
        super().__init__(4, 3)
        self.left, self.why = fails, why

    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            raise self.why
        return super().forward(x)


BATCH = torch.zeros(6, 4), torch.zeros(6, dtype=torch.long)


@pytest.mark.parametrize("fails", range(4), ids=["at first", "as it is", "in the repair", "repaired"])
def test_what_the_users_own_code_raises_while_a_repair_is_chosen_ends_the_command(fails):
    network = Counting(fails, ZeroDivisionError("mine"))
    runs = Counting(99, None)
    evaluate(runs, [BATCH])
    measured = 99 - runs.left  # how often it is run for one figure
    network.left = (0, measured - 1, measured, measured + 1)[fails]
    with pytest.raises(NetworkError, match="mine") as raised:
        choose(network, lambda it: check_runs(it, BATCH[0]), [BATCH], scores=evaluate)
    assert raised.value.own_code and "test_choices.py:" in str(raised.value.place)


def test_what_is_no_failure_of_the_users_leaves_the_merge_as_it_is():
    def refused(network):
        raise NetworkError("the network cannot be traced")

    choice = choose(nn.Linear(4, 3), refused, [BATCH], scores=evaluate)
    assert (choice.chosen, choice.why) == ("none", "the network cannot be traced")
