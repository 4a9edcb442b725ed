"""What rounding may change of each number."""

import torch

from rebasin_cli.commands.verbs.symmetries import allowed, equal, near, own_size, shaken


def test_what_is_allowed_is_of_each_number():
    """Sums of weights: a coarse weight, or a large one, allows more of those sums alone that it is in."""
    model = {"fine": torch.ones(2), "coarse": torch.ones(1).bfloat16(), "large": torch.full((1,), 1e7)}

    def sums(m):
        return torch.stack([m["fine"].sum(), m["fine"][0] + m["coarse"][0], m["fine"][0] + m["large"][0]])

    own = sums({name: tensor.double() for name, tensor in model.items()})
    bound = allowed(own, map(sums, shaken(model)))
    assert 1e-7 < bound[0] < 2e-6 and 1e-3 < bound[1] < 0.1 and 0.1 < bound[2] < 10
    assert near(own, own + torch.tensor([1e-7, 1e-3, 0.1]), bound)
    for k in range(3):
        assert not near(own, own + torch.eye(3)[k] * 3 * bound[k], bound)
    assert not near(own, own.where(torch.tensor([True, False, True]), torch.nan), bound)
    assert bool((allowed(own, map(sums, shaken(model, 2**-30)))[:2] < 1e-7).all())  # whatever their types


def test_a_size_is_that_of_what_is_mixed():
    tensor = torch.tensor([[1e7, 1.0], [0.0, 1.0]])
    assert own_size(tensor)[1, 1] < 1e-6 and own_size(tensor)[0, 0] > 1
    assert own_size(tensor, mixed=[1]).flatten().gt(1).tolist() == [True, False]


def test_shaking_keeps_zeros_integers_and_itself():
    model = {"w": torch.tensor([0.0, 1.0]), "n": torch.tensor(3)}
    one, other = shaken(model)[:2]
    assert one["w"][0] == 0 and one["w"][1] != 1 and one["n"] == 3
    assert torch.equal(one["w"], one["w"]) and not torch.equal(one["w"], other["w"])


def test_equal_is_to_the_last_bit_in_one_dtype():
    x = torch.tensor([1.0, -0.0])
    assert equal(x, torch.tensor([1.0, 0.0])) and not equal(x, torch.tensor([1.0 + 2**-23, 0.0]))
    assert not equal(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
    assert equal(x, x.bfloat16()) and not equal(x, torch.tensor([1.0 + 2**-6, 0.0]).bfloat16())
    assert not equal(x, x[:1]) and not equal(torch.tensor([1]), torch.tensor([1.0]))
