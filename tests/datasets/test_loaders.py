"""Loaders of a user's own whose batches are others each time they are read."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from rebasin_cli.datasets import loaders
from rebasin_cli.datasets.batches import Kept, Once, Same, steady
from rebasin_cli.datasets.loaders import open_loader
from rebasin_cli.errors import DataError

PAIRS = TensorDataset(torch.arange(20.0)[:, None], torch.arange(20))


def numbers(data):
    return torch.cat([targets for _, targets in data]).tolist()


def loader(split):
    return DataLoader(PAIRS, batch_size=6, shuffle=split == "train")


def test_a_loader_that_shuffles_is_read_once_and_parts_of_it_are_apart():
    data = open_loader("mine", loader, "train")
    assert numbers(data) == numbers(data) != sorted(numbers(data)) == list(range(20))
    assert "read once and kept" in data.how
    first, rest = data.subset(8), data.subset(12, skip=8)
    assert numbers(first) + numbers(rest) == numbers(data)
    assert numbers(open_loader("mine", loader, "train")) == numbers(data)  # the same in another command
    of = (0, 1, 0)  # who trains gets new ones, the same in each run
    epochs = [torch.cat([t for _, t in data.shuffled(torch.Generator().manual_seed(k))]).tolist() for k in of]
    assert epochs[0] == epochs[2] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])


def test_one_that_does_not_shuffle_is_read_as_it_is():
    data = open_loader("mine", loader, "test")
    assert not isinstance(data.batches, Kept) and data.how == "called with the name of a split"
    assert steady(batches := [(torch.ones(2, 1), torch.ones(2))]) is batches


@pytest.mark.parametrize("give", [lambda split: PAIRS, PAIRS, lambda: {"train": PAIRS, "test": PAIRS}])
def test_a_set_of_single_samples_is_read_in_batches_mixed_and_for_training_mixed_anew(give):
    data = open_loader("mine", give, "train", batch_size=6)
    assert numbers(data) == numbers(data) != sorted(numbers(data)) == list(range(20))
    assert [len(y) for _, y in data] == [6, 6, 6, 2] and all(torch.equal(x[:, 0], y) for x, y in data)
    assert "a Dataset, mixed, in batches of 6" in data.how
    first, rest = data.subset(8), data.subset(12, skip=8)
    assert numbers(first) + numbers(rest) == numbers(data)
    epochs = [numbers(data.shuffled(torch.Generator().manual_seed(k))) for k in (0, 1, 0)]
    assert epochs[0] == epochs[2] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))


class Batches(Dataset):
    """Two batches, to be read or to be asked for: no set of samples by number."""

    def __len__(self):
        return 20

    def __iter__(self):
        return iter([PAIRS[:8], PAIRS[8:]])


class Asked(Batches):
    def __call__(self, split):
        return [PAIRS[:6]]


@pytest.mark.parametrize(
    ("batches", "sizes"), [(Batches(), [8, 12]), (lambda split: Batches(), [8, 12]), (Asked(), [6])]
)
def test_a_dataset_that_gives_batches_is_read_by_them(batches, sizes):
    assert [len(y) for _, y in open_loader("mine", batches, "train")] == sizes


def test_a_length_that_is_none_is_the_datas():
    class Wrong(TensorDataset):
        def __len__(self):
            return "many"

    with pytest.raises(DataError, match="the length of the data"):
        open_loader("mine", Wrong(torch.ones(2, 1), torch.ones(2)), "train")


def test_numpy_batches_that_are_drawn_are_kept_too():
    class Drawn:
        def __iter__(self):
            yield from ((torch.rand(3, 2).numpy(), [0, 1, 0]) for _ in range(2))

    data = open_loader("mine", lambda split: Drawn(), "train")
    one, other = ([x for x, _ in data] for _ in range(2))
    assert all(map(torch.equal, one, other)) and not torch.equal(one[0], one[1])


class Ordered:
    """Batches of one sample in an order that is drawn at each reading."""

    def __init__(self, order):
        self.order = order

    def __iter__(self):
        return ((torch.ones(1, 1) * number, torch.tensor([number])) for number in self.order())


def by_python():
    order = list(range(20))
    random.shuffle(order)
    return order


DRAWN = {"numpy": lambda: np.random.permutation(20).tolist(), "python": by_python}
DRAWN["late"] = lambda: [0, *(1 + np.random.permutation(19)).tolist()]


@pytest.mark.parametrize("order", DRAWN.values(), ids=DRAWN)
def test_what_numpy_and_python_draw_is_the_same_at_each_reading_and_in_each_run(order):
    readings = []
    for _ in range(2):
        before = random.getstate(), np.random.get_state()[1].tolist()
        data = open_loader("mine", lambda split: Ordered(order), "test")
        readings += [numbers(data), numbers(data)]
        assert before == (random.getstate(), np.random.get_state()[1].tolist())
    assert sorted(readings[0]) == list(range(20)) and all(one == readings[0] for one in readings)
    called = [numbers(open_loader("mine", lambda split: [*Ordered(order)], "test")) for _ in range(2)]
    assert called[0] == called[1] != list(range(20))


def test_one_that_begins_alike_and_goes_on_otherwise_is_refused():
    """By a generator of its own, which nobody can seed."""
    own = np.random.default_rng(0)
    shuffled, shorter = (lambda: [0, *(1 + own.permutation(19))]), lambda: range(own.integers(2, 9))
    for order in (shuffled, shorter):
        data = open_loader("mine", lambda split, order=order: Ordered(order), "test")
        with pytest.raises(DataError, match="is another one than when the data were first read"):
            for _ in range(5):
                numbers(data)
    few = open_loader("mine", lambda split: Ordered(shuffled), "test").subset(1)
    assert numbers(few) == numbers(few) == [0]
    growing = iter((3, 3, 3, 3, 5))
    data = open_loader("mine", lambda split: Ordered(lambda: range(next(growing))), "test")
    assert numbers(data) == [0, 1, 2]
    with pytest.raises(DataError, match="batch 3 of the data"):
        numbers(data)


@pytest.mark.parametrize("other", [torch.zeros(2, 3), torch.zeros(6), torch.zeros(3, 2, dtype=torch.int32)])
def test_a_batch_of_another_shape_or_type_is_another_one_although_its_bytes_are_the_same(other):
    data = Same([torch.zeros(3, 2)])
    list(data)
    data.source = [other]
    with pytest.raises(DataError, match="batch 0 of the data is another one"):
        list(data)


def test_training_reads_a_loader_that_augments_by_a_generator_of_its_own_whatever_comes():
    own = np.random.default_rng(0)
    train = open_loader("mine", lambda split: Ordered(lambda: [0, *(1 + own.permutation(19))]), "train")
    for data in (train, train.subset(15), train.subset(15, skip=2)):
        for epoch in range(3):
            read = [targets for _, targets in data.shuffled(torch.Generator().manual_seed(epoch))]
            assert sum(map(len, read)) == (data.limit or 20)


def test_training_reads_no_loader_that_has_no_end(monkeypatch, caplog):
    """Before, it is said how many were read: once, however often they are."""
    monkeypatch.setattr(loaders, "ENDLESS", 100)
    monkeypatch.setattr(loaders, "MANY", 20)
    caplog.set_level("INFO", "rebasin")
    endless = open_loader("mine", lambda split: Ordered(itertools.count), "train")
    for _ in range(2):
        with pytest.raises(DataError, match="no end in sight"):
            list(endless.shuffled(torch.Generator()))
    assert [line.split(": ")[1].split()[0] for line in caplog.messages] == ["21", "43", "87"]


def test_batches_that_a_loader_writes_into_the_same_memory_are_kept_apart():
    class Reused:
        def __iter__(self):
            memory = torch.empty(4, 3)
            for number in torch.randperm(9).tolist():
                yield memory.fill_(number), torch.full((4,), number)

    data = open_loader("mine", lambda split: Reused(), "train")
    assert "read once and kept" in data.how
    assert all((inputs == targets[:, None]).all() for inputs, targets in [*data])


def test_no_more_is_read_than_somebody_asks_for_and_too_much_is_refused():
    read = []

    def batches():
        for number in range(10):
            read.append(number)
            yield torch.rand(4, 5), torch.zeros(4)

    class Loader:
        def __iter__(self):
            return batches()

    kept = Kept(Loader())
    next(iter(kept)), next(iter(kept))
    assert read == [0]
    with pytest.raises(DataError, match="too many to be kept"):
        list(Kept(Loader(), most=500))


def test_what_failed_on_its_way_is_read_whole_by_who_tries_again():
    failing = [True]

    class Loader:
        def __iter__(self):
            yield torch.ones(2, 1), torch.ones(2)
            if failing:
                raise ValueError("once")
            yield torch.ones(3, 1), torch.ones(3)

    once = Once(Loader())
    with pytest.raises(DataError):
        list(once)
    failing.clear()
    assert [len(targets) for _, targets in once] == [2, 3]


class Rows:
    """As Hugging Face's data sets are: dictionaries of Python's numbers, by number or one after the other."""

    def __len__(self):
        return 20

    def __getitem__(self, k):
        return {"pixels": [float(k), 0.0], "label": k}

    def __iter__(self):
        return map(self.__getitem__, range(20))


class Stream(IterableDataset):
    def __init__(self, size=()):
        self.size = size

    def __iter__(self):
        return iter((torch.full((*self.size, 1), float(k)), torch.full(self.size, k)) for k in range(20))


def test_samples_that_are_no_set_of_pytorchs_are_read_in_batches_too():
    data = open_loader("mine", lambda split: Rows(), "test", batch_size=6)
    assert numbers(data) == numbers(data) != sorted(numbers(data)) == list(range(20))
    assert all(torch.equal(x, torch.stack([y, y * 0], 1)) for x, y in data)
    assert [len(y) for _, y in data] == [6, 6, 6, 2]
    data = open_loader("mine", lambda split: Stream(), "test", batch_size=6)
    assert [len(y) for _, y in data] == [6, 6, 6, 2] and numbers(data) == list(range(20))


def test_batches_are_no_samples_whatever_their_targets():
    batches = open_loader("mine", lambda split: Stream((3,)), "test", batch_size=6)
    assert [len(y) for _, y in batches] == [3] * 20
    without = [(torch.ones(4, 2), 0)] * 3  # in the place of targets
    assert open_loader("mine", lambda split: without, "test").batches is without


@pytest.mark.parametrize("many", [list(PAIRS), DataLoader(PAIRS, batch_size=None)])
def test_single_samples_in_a_row_are_refused_with_the_next_step(many):
    with pytest.raises(DataError, match="yields single samples") as told:
        open_loader("mine", lambda split: many, "test")
    assert "DataLoader(samples, batch_size=32)" in told.value.hint
