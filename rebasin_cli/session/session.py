"""One command on files: its models, spec, network, samples, proof and search, each resolved on first use.

A command opens a `Session` from paths and subjects, and passes it on alone. What it resolves it keeps, and says
what it chose. The order of a command's lines is the order in which things are read.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from ..checkpoints.checkpoint import Checkpoint
from ..commands.verbs import groups as grouped
from ..commands.verbs import provenance, strangers
from ..commands.verbs import search as matching
from ..commands.verbs.outputs import Output
from ..commands.verbs.resume import Resumable
from ..errors import UsageError
from ..groups.folds import Folds
from ..matchers import State
from ..matchers.search import align as searching
from ..networks.evaluation import Scores
from ..runtime import devices
from ..runtime.files import Inputs
from ..runtime.ranks import ALONE, Ranks
from ..spec.spec import FittedSpec
from ..types import Permutations
from . import checks, doubts, method_options, samples
from .held_out import HeldOut
from .inputs import inputs_of
from .listener import SILENT, Listener
from .models import fit_spec, looked_through, open_models, read_permutation
from .network import find_network, need_inputs, none_named, origin
from .samples import Splits
from .subjects import Asked, ForMerge, Search

AVERAGING = ("merge", "barrier", "compare", "curve", "plane", "repair")  # commands that mix models' tensors


class Session:
    """What a command works with. `command` is its name in provenance; `paths` are its models, A first.

    Of several `ranks`, each opens a session of its own alike. `perm` is a file with the permutation of the
    last model, which takes the place of a search; with `undo` it is taken back.
    """

    def __init__(
        self,
        command: str,
        paths: Sequence[Path],
        listener: Listener = SILENT,
        *,
        perm: Path | None = None,
        undo: bool = False,
        ranks: Ranks = ALONE,
        **subjects: Unpack[ForMerge],
    ):
        self.command, self.paths, self.listener, self.ranks = command, list(paths), listener, ranks
        self.asked, self.perm, self.undo = Asked(**subjects), perm, undo
        self.seed, self.output = self.asked.network.seed, self.asked.network.output
        self.outputs = self.asked.network.outputs
        self.splits: Splits = {}  # those that were opened
        self.took: dict[str, float] = {}  # seconds of what a result tells beside the search
        self.better: tuple[doubts.Better, ...] | None = None  # than its inputs; None: nobody looked yet

    def by(self, search: Search) -> Session:
        """This very session, by another search: models, spec, network and samples are the same ones."""
        other = copy.copy(self)
        for name in ("options", "first_state"):
            other.__dict__.pop(name, None)
        other.asked = replace(self.asked, search=search)
        return other

    def settled(self) -> Session:
        """By the method `auto`, where nobody named one and network and data are known; else this one."""
        return matching.settled(self)

    def say(self, text: str) -> None:
        self.listener.say(text)

    # ----------------------------------------------------------------------------- options, device, files

    def inputs(self, *more: Path | None) -> Inputs:
        """All files that this command reads, and `more` that its own options name."""
        return self._named.and_files(more)

    @cached_property
    def _named(self) -> Inputs:
        return inputs_of(self.paths, self.asked, [self.perm])

    def check_search(
        self, output: Output | None = None, *, or_none: bool = False, steps: bool = False
    ) -> None:
        """Raise UsageError for a method, its options or a log that make no sense, before anything is read.

        With `steps` the command itself trains something, whatever the method.
        """
        self.ranks.each(checks.check_method, self.asked.search, or_none=or_none)
        self.ranks.each(lambda: self.held_out)
        self.ranks.each(lambda: self.options)
        if output is not None:
            steps = steps or method_options.trains(self.asked.search.method)
            self.ranks.first(checks.check_kept, self.asked.search, output, self.inputs(), steps=steps)

    @cached_property
    def options(self) -> Any:
        """The method's Options, with what the user set of them; None for "none"."""
        return method_options.make(self.asked.search, self.asked.data)

    def check_needs(self) -> None:
        """Raise UsageError for a --limit that limits nothing, or that names all that the search lacks."""
        self.ranks.each(matching.check_limit, self)
        self.ranks.each(matching.check_needs, self)

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

    @cached_property
    def scores(self) -> Callable[..., Scores]:
        """`evaluate` with the user's own loss, metric and output."""
        return samples.scorer(self.asked.data, self.output, self.device)

    @cached_property
    def opened(self) -> list[Checkpoint]:
        """The checkpoints as they are, none looked through."""
        return self.ranks.each(open_models, self.paths, self.asked.loading, self.say)

    @cached_property
    def models(self) -> list[Checkpoint]:
        """The same, looked through, under the names of the first; a device that is not there comes first."""
        _ = self.device
        found = self.ranks.each(looked_through, self.paths, self.opened, self.say, self.ranks)
        if self.command in ("align", "merge"):
            samples.recorded_vocabulary(found)  # where no data is read, nobody else asks
        return found

    @cached_property
    def fitted(self) -> FittedSpec:
        """The spec, fitted to the models; with groups, where these were asked for."""
        asked, averaged = self.asked, self.command in AVERAGING
        fitted = self.ranks.each(
            lambda: fit_spec(
                self.models, asked.loading, asked.network, asked.data, self.say, averaged=averaged
            )
        )
        if self.asked.search.groups == "permutations":
            return fitted.ordered
        self._symmetries = self.ranks.each(grouped.symmetries, self, fitted)
        return self._symmetries[0]

    @property
    def folds(self) -> Folds | None:
        """What canonical forms fold away; None where only permutations were asked for."""
        return None if self.asked.search.groups == "permutations" else (self.fitted, self._symmetries[1])[1]

    @cached_property
    def given(self) -> tuple[Permutations | None, dict[str, str]]:
        """The permutation of the file `perm`, and what an output records of it."""
        if self.perm is None:
            return None, {}
        return read_permutation(self.perm, self.fitted, self.models[-1], undo=self.undo)

    def tell_strangers(self) -> None:
        """Say where models are taken as they are (`--method none`), and look like strangers."""
        if self.method == "none":
            strangers.tell(self.models, self.say)

    @property
    def method(self) -> str:
        """What an output records: the method of the search, or "given"."""
        return "given" if self.perm else self.asked.search.method

    @property
    def moved(self) -> bool:
        """Whether units change their places at all."""
        return self.method != "none"

    # ------------------------------------------------------------------------------------ network, samples

    @cached_property
    def network(self) -> nn.Module | None:
        """The network on the CPU, in float32; None where nobody names one."""
        return find_network(
            self.fitted, self.asked.network, self.say, named=self.asked.loading.spec is not None
        )

    def need_network(self) -> nn.Module:
        """The network. Raises UsageError where nobody names one."""
        if self.network is None:
            raise none_named(self.fitted)
        return self.network

    def forget_network(self) -> None:
        """Give the network's memory back: what asks for it next makes it anew."""
        self.__dict__.pop("network", None)

    @property
    def network_is_assumed(self) -> bool:
        """Whether only the tensors' names tell what network they belong to."""
        return (
            self.network is not None
            and origin(self.network, self.fitted, self.models, self.asked.network)["assumed"]
        )

    def need_inputs(self) -> Any:
        """One batch that the network takes. Raises UsageError where nobody tells."""
        return need_inputs(self.need_network(), self.asked.network, self.asked.data)

    @cached_property
    def has_data(self) -> bool:
        """Whether a data set is named or recorded."""
        return samples.data_reference(self.models, self.asked.data) is not None

    def open_splits(self, *wanted: str, **how: Any) -> Splits:
        """The wanted splits, as `samples.open_splits` says."""
        say = (lambda text: None) if self.splits else self.say  # which data it is is told once
        found = samples.open_splits(self.models, self.asked.data, self.seed, say, wanted=wanted, **how)
        self.splits |= found
        self.look_at_inputs(found, self.__dict__.get("network"))
        return found

    def look_at_inputs(self, splits: Splits, network: nn.Module | None) -> None:
        """Say, once, where models lose clearly less with their inputs normalised in another usual way."""
        if self.better is None and network is not None:
            self.better = doubts.look(self, splits, network) if self.ranks.rank == 0 else ()

    def settle_repair(self, *, has_data: bool | None = None) -> str:
        """Which repair, as far as the spec and the options tell; refuses what cannot be."""
        there = self.has_data if has_data is None else has_data
        if self.held_out is not None and not there:
            raise UsageError(
                f"--held-out {self.held_out.text}: no data set is known", hint="Name one with --data NAME"
            )
        named = self.asked.network.net is not None or self.fitted.spec.net is not None
        return checks.settle_repair(self.fitted, self.asked.repair, has_data=there, has_network=named)

    def endpoint_check(self) -> Callable[[Mapping[str, Sequence[Scores]]], None]:
        """A look at the endpoints' test scores that stops a run fed the wrong inputs."""
        test = self.splits["test"]
        better = [one.option for one in self.better or ()]
        return samples.endpoint_check(self.models, test.name, test.classes, self.asked.data, better=better)

    # ------------------------------------------------------------------------------------- proof and search

    def match_inputs(self) -> dict[str, Any]:
        """The network and the training samples that a method matches by.

        Empty where weights are enough. Raises UsageError that says what is missing.
        """
        if not self.runs_network:
            return {}
        return self.ranks.each(matching.inputs_of, self)

    @property
    def runs_network(self) -> bool:
        """Whether the search runs the network on samples: the method, or the swaps that come last."""
        polish = self.method != "given" and self.asked.search.polish is not None
        return polish or method_options.needs_data(self.method)

    def proof(self) -> dict[str, Any]:
        """Prove that permuting by the spec preserves the network's function; the account of it, or why none.

        Raises NotProven, and NetworkError where the network fails.
        """
        began = time.perf_counter()
        account = self.ranks.first(matching.prove, self)
        if account["status"] == "proven":
            self.took["proof"] = time.perf_counter() - began
        return account

    def resumable(
        self, output: Output, more: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Resumable]:
        """The state of this very search is kept beside the output when it is interrupted.

        `more` are options that are not the method's, and make another search of it.
        """
        return matching.resumable(self, output, more)

    @cached_property
    def first_state(self) -> State | None:
        """Where a permutation file lets the search start (`--init FILE`); None where none is named.

        Raises UsageError for more than two models, and what `read_permutation` does.
        """
        return matching.first_state(self)

    def search(
        self,
        state: Resumable | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> searching.Alignment | None:
        """Find the permutations with the method that was asked for, from where `state` says.

        None where there is nothing to search: the method is "none", or a permutation is given. `inputs` are
        those of `match_inputs`, where they were found before.
        """
        return matching.search(self, state or Resumable(), inputs)

    # --------------------------------------------------------------------------------------- plans, accounts

    def plan(self) -> dict[str, Any]:
        """Tensors, permutations, sizes and memory of the search, without running anything."""
        return matching.plan(self)

    def describe(
        self, *, method: str | None = None, options: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, str]:
        """Provenance of an output: of the search, if this command searches, and of `options` beside it."""
        return provenance.describe(
            self.command,
            self.models,
            self.fitted,
            method=method or self.method,
            seed=self.seed,
            options=method_options.recorded(self.asked.search, self.asked.data) | dict(options or {}),
            **more,
        )

    def summary(
        self, found: searching.Alignment | None, proof: Mapping[str, Any], *, written: Sequence[str]
    ) -> dict[str, Any]:
        """What a command did, as values for --json and for a person."""
        return matching.summary(self, found, proof, written)
