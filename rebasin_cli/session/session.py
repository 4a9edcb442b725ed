"""One command on files: its models, spec, network and samples, each opened on first use.

A command makes a `Session` from paths and subjects, and passes it on alone. What it opens it keeps, and says
what it chose; what is done with that are functions in `commands.verbs`. The order of a command's lines is the
order in which things are read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from ..errors import UsageError
from ..matchers.portfolio.align import Alignment
from ..networks import losses
from ..networks.evaluation import Scorer
from ..networks.losses import Loss
from ..runtime import devices
from ..runtime.files import Inputs
from ..runtime.ranks import ALONE, Ranks
from ..spec.spec import FittedSpec
from ..symmetry import elements, stored
from ..symmetry.elements import Elements
from ..symmetry.folds import NONE, Folds
from ..symmetry.form import canonical, turned
from ..types import Tensors
from . import doubts, given, method_options, samples
from .asked import inputs_of
from .given import Given
from .listener import SILENT, Listener
from .models import check_one, know_digests, look_through, named_alike, open_models
from .network import find_network, given_network, line_of, named_network, none_named
from .request import Search, Subjects
from .samples import HeldOut, Splits
from .specs import fit_spec, with_groups

T = TypeVar("T")
AVERAGING = ("merge", "barrier", "compare", "curve", "plane", "repair")  # commands that mix models' tensors


class Session:
    """What a command works with. `command` is its name in provenance; `paths` are its models, A first.

    Of several `ranks`, each opens a session of its own alike. `perm` is a file with the permutation of the
    last model, which takes the place of a search; with `undo` it is taken back. `curves` are files
    of trained curves between the models.
    """

    def __init__(
        self,
        command: str,
        paths: Sequence[Path],
        listener: Listener = SILENT,
        asked: Subjects = Subjects(),  # noqa: B008 (frozen)
        *,
        perm: Path | None = None,
        curves: Iterable[Path] = (),
        undo: bool = False,
        ranks: Ranks = ALONE,
    ):
        self.command, self.paths, self.listener, self.ranks = command, list(paths), listener, ranks
        self.asked, self.perm, self.curves, self.undo = asked, perm, tuple(curves), undo
        self.seed, self.say = self.asked.network.seed, listener.say
        self.splits: Splits = {}  # those that were opened
        self.own_loss = False  # whether the network computes its loss itself, which its batches tell
        self.nets: set[str] = set()  # that the spec names; `by` and `over` share it
        self.better: tuple[doubts.Better, ...] | None = None  # than its inputs; None: nobody looked yet

    def by(self, search: Search) -> Session:
        """This very session, by another search: models, network and samples are the same ones.

        So is the spec, unless only one of both searches asks for groups.
        """
        other = copy.copy(self)
        other.asked = replace(self.asked, search=search)
        for name in ("options",) if other.grouped == self.grouped else ("options", "symmetries"):
            other.__dict__.pop(name, None)
        return other

    def by_first(self, why: str, step: Callable[[Session], T], *, goes_on: bool = False) -> T:
        """What ranks cannot share, done by the first one while the others wait; says `why`.

        Its result, small and plain, on all, whose command ends with it unless it `goes_on`.
        """
        if self.ranks.size == 1:
            return step(self)
        self.say(f"{why}: the first of {self.ranks.size} processes does the rest, the others wait")
        alone = copy.copy(self)
        alone.ranks = ALONE
        alone.__dict__.pop("scores", None)  # which it would share
        return (self.ranks.turn if goes_on else self.ranks.alone)(step, alone)

    def over(self, models: Sequence[Checkpoint], asked: Subjects) -> Session:
        """The same command on other tensors of these files: what was opened of theirs is opened anew."""
        other = copy.copy(self)
        for name in ("models", "plain", "symmetries", "given", "network", "network_alone", "has_data"):
            other.__dict__.pop(name, None)
        other.__dict__["named"], other.asked = list(models), asked
        return other

    @property
    def output(self) -> str | None:
        """Which output is measured: as it was asked; else, of a network that a configuration names, `logits`.

        None for all of them, and where a loss or metric of the user's own sees them.
        """
        named, data = self.asked.network.output, self.asked.data
        if (
            named is not None
            or data.loss
            or data.metric
            or self.own_loss
            or "symmetries" not in self.__dict__
        ):
            return named
        kept = self.fitted.spec.proof.get("kept", ())
        return "logits" if isinstance(kept, (list, tuple)) and "logits" in kept else None

    @property
    def outputs(self) -> dict[str, Any]:
        """Which is measured, and which are no part of the network's function."""
        return replace(self.asked.network, output=self.output).outputs

    @property
    def method(self) -> str:
        """What an output records: the method of the search, or "given"."""
        return "given" if self.perm else self.asked.search.method

    @property
    def moved(self) -> bool:
        """Whether units change their places at all."""
        return self.method != "none"

    # ------------------------------------------------------------------------------------- options, device

    @cached_property
    def reads(self) -> Inputs:
        """All files that the subjects of this command name; its own options may name more."""
        return inputs_of(self.paths, self.asked, [self.perm])

    @cached_property
    def options(self) -> Any:
        """The method's Options, with what the user set of them; None for "none"."""
        return method_options.make(self.asked.search, self.asked.data)

    @cached_property
    def held_out(self) -> HeldOut | None:
        """The samples to choose by that the user named. Raises UsageError."""
        text = self.asked.data.held_out
        return None if text is None else HeldOut.parse(text)

    @property
    def unseen(self) -> bool:
        """Whether no endpoint was trained on the samples that choices are made by."""
        return self.held_out is not None and self.held_out.unseen

    @cached_property
    def device(self) -> str:
        return devices.choose(self.asked.network.device)

    # -------------------------------------------------------------------------------- models, spec, groups

    @cached_property
    def opened(self) -> list[Checkpoint]:
        """The checkpoints as they are, none looked through."""
        return self.ranks.each(open_models, self.paths, self.asked.loading, self.say)

    @cached_property
    def named(self) -> list[Checkpoint]:
        """The same under the names of the first, as their headers tell them: no value is looked at.

        A device that is not there comes first.
        """
        _ = self.device
        net = named_network(self.paths[0], self.asked.loading, self.asked.network)
        found = self.ranks.each(named_alike, self.paths, self.opened, self.say, net)
        if self.command in ("align", "merge"):
            samples.recorded_vocabulary(found)  # where no data is read, nobody else asks
        return found

    @cached_property
    def models(self) -> list[Checkpoint]:
        """The same, their values looked at: each file is read once."""
        found = self.named
        _ = self.looked
        return found

    @cached_property
    def looked(self) -> bool:
        """That the values of all files were looked at."""
        self.ranks.each(look_through, self.paths, self.opened, self.ranks)
        know_digests(self.opened, self.ranks)
        return True

    @property
    def most(self) -> int | None:
        """Bytes of memory that the command may plan to hold; None where nobody says."""
        return self.asked.bounded.bytes

    @property
    def fitted(self) -> FittedSpec:
        """The spec, fitted to the models; with groups, where these were asked for."""
        return self.symmetries[0]

    @property
    def folds(self) -> Folds:
        """What canonical forms fold away; nothing, opening no model, where orders alone were asked for."""
        return self.symmetries[1] if self.grouped else NONE

    @cached_property
    def symmetries(self) -> tuple[FittedSpec, Folds]:
        """`fitted` and `folds`, which are found together; elements that are given may bring both."""
        asked = self.asked
        models = self.named  # which all open before any looks for a spec
        if self.form is not None:
            if asked.loading.spec is not None:
                raise UsageError(
                    f"--spec {asked.loading.spec}: {self.form[0]} brings the spec that its elements are of",
                    hint="Leave --spec out",
                )
            found = self.ranks.each(given.form_of, *self.form, models)
            self.nets |= {net for net in (found[0].spec.net,) if net is not None}
            return found
        if asked.search.groups != "all":
            return self.plain.ordered, NONE
        return self.ranks.each(with_groups, self.plain, models, asked, self.say)

    @cached_property
    def plain(self) -> FittedSpec:
        """The spec without the groups that `--groups all` finds: no value is read for it."""
        asked = self.asked
        found = self.ranks.each(
            lambda: fit_spec(
                self.named,
                asked.loading,
                asked.network,
                asked.data,
                self.say,
                averaged=self.command in AVERAGING,
                offers_net=self.command != "apply",
            )
        )
        if found.spec.net is not None:
            self.nets.add(found.spec.net)
        return found

    @property
    def ungrouped(self) -> Session:
        """This session before groups are looked for: it knows what headers tell, and says nothing."""
        other = copy.copy(self)
        other.__dict__["symmetries"], other.say = (self.plain.ordered, NONE), SILENT.say
        return other

    @cached_property
    def form(self) -> tuple[Path, Mapping[str, str]] | None:
        """The first file with elements that act on models in canonical form, and what it says of that."""
        for path in filter(None, (self.perm, *self.curves)):
            if stored.SPEC in (made := open_checkpoint(path).metadata):
                return path, made
        return None

    @property
    def grouped(self) -> bool:
        """Whether more than orders was asked for, or is given."""
        return self.form is not None or self.asked.search.groups == "all"

    @cached_property
    def given(self) -> Given | None:
        """The elements of the file `perm`."""
        if self.perm is None:
            return None
        return given.read(self.perm, self.fitted, self.models[-1], undo=self.undo)

    def standing(self, found: Alignment | None) -> Sequence[Tensors]:
        """All models as a search left them, or the last one as the elements that are given make it."""
        if found is not None:
            return found.models
        if self.given is None:
            return self.models
        *others, last = self.models
        forms = [canonical(model, self.fitted, self.folds).tensors for model in others]
        return [*forms, turned(last, self.fitted, self.given.elements, self.folds)]

    def element(self, found: Alignment | None) -> Elements:
        """Of the last model: what was found, or is given; else the identity."""
        if found is not None:
            return found.elements[-1]
        return elements.identity(self.fitted) if self.given is None else self.given.elements

    @property
    def of_given(self) -> dict[str, str]:
        """What an output records of elements that are given."""
        return {} if self.given is None else self.given.record

    # ------------------------------------------------------------------------------------ network, samples

    @cached_property
    def network(self) -> nn.Module | None:
        """The network on the CPU, in float32; None where nobody names one."""
        named = self.asked.loading.spec is not None
        found = find_network(self.fitted, self.asked.network, self.say, named=named)
        if found is not None:
            check_one(found, self.named)
        return found

    def need_network(self) -> nn.Module:
        """The network. Raises UsageError where nobody names one."""
        if self.network is None:
            wants = not self.has_data and self.command not in ("align", "merge", "canon")
            raise none_named(self.fitted, line_of(self.command, self.paths, data=wants))
        return self.network

    def forget_network(self) -> None:
        """Give the network's memory back: what asks for it next makes it anew."""
        self.__dict__.pop("network", None)

    @cached_property
    def network_alone(self) -> nn.Module:
        """The network of a command that permutes nothing: no spec is needed where --net names it.

        Raises UsageError where nobody names one.
        """
        if self.asked.network.net is None or self.asked.loading.spec is not None:
            return self.need_network()
        return given_network(self.models[0].shapes, self.asked.network, self.say)

    @cached_property
    def scores(self) -> Scorer:
        """`evaluate` with the user's own loss, metric and output, shared by the ranks."""
        measured = samples.scorer(self.asked.data, self.output, self.device)
        # The spec may not have been known before
        return Scorer(measured, self.ranks, lambda: {"loss": self.loss, "output": self.output})

    @cached_property
    def has_data(self) -> bool:
        """Whether a data set is named or recorded."""
        return samples.data_reference(self.named, self.asked.data) is not None

    def open_splits(self, *wanted: str, **how: Any) -> Splits:
        """The wanted splits, as `samples.open_splits` says; which data it is is told once.

        Says, once, where models lose clearly less with their inputs normalised in another usual way.
        """
        say = SILENT.say if self.splits else self.say
        how |= {"wanted": wanted, "repair_samples": self.asked.repair.repair_samples}
        found = samples.open_splits(self.named, self.asked.data, self.seed, say, **how)
        found = self.with_own_loss(found)
        self.splits |= found
        self.look_at_inputs(found, self.__dict__.get("network"))
        return found

    def with_own_loss(self, splits: Splits) -> Splits:
        """The splits, with targets inside where the network computes its loss itself, and none is named."""
        network = self.__dict__.get("network") or self.__dict__.get("network_alone")
        if self.asked.data.loss or self.asked.network.output is not None or network is None:
            return splits
        found = samples.computing_its_loss(splits, network)
        if any(found[name] is not its for name, its in splits.items()) and not self.own_loss:
            self.own_loss = True
            self.say("loss: the network's own, since it takes the targets with the inputs")
        return found

    @property
    def loss(self) -> Loss | None:
        """The user's own loss, or the network's; None for cross-entropy."""
        return samples.loss_of(self.asked.data) or (Loss(losses.OWN, carried=True) if self.own_loss else None)

    @property
    def chosen_by(self) -> str:
        """The key of the held-out figure that methods and repairs are chosen by. Raises UsageError."""
        return samples.chosen_by(self.asked.data)

    def look_at_inputs(self, splits: Splits, network: nn.Module | None) -> None:
        """What `better` is, by the first splits that are looked at with a network."""
        if self.better is None and network is not None:
            asked = (self.asked.data, self.output, self.device, self.say)
            models = self.models  # which all open together
            self.better = doubts.look(models, network, splits, *asked) if self.ranks.rank == 0 else ()
