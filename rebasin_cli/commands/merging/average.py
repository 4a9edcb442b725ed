"""How models are averaged, and what is refused of it before an hour of searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...averages import weights as schedules
from ...averages.means import check_interpolation
from ...averages.parts import check_choices
from ...averages.weights import checked
from ...checkpoints.peft import CONFIG
from ...errors import UsageError, unknown
from ...registry.options import PLAIN, READS, option
from ...session.asked import of_model
from ...session.request import Subjects
from ..verbs.outputs import Output

SOUPS = ("greedy",)


@dataclass(frozen=True, kw_only=True)
class Mean:
    """What any average of models takes, as it is typed."""

    reference: Path | None = option(
        None,
        "Which of the models the others are aligned to; else the first.",
        metavar="FILE",
        role=READS,
    )
    weights: str | None = option(
        None,
        "One weight a model, adding up to 1, such as 1/3,1/3,1/3; equal if left out (uniform). "
        "Negative ones, too: 1,0.8,-0.8 adds to A 0.8 of what B has beyond C. Of a run's checkpoints, "
        "ordered by their steps, what a decay would have left: linear, cosine, minus-sqrt.",
        metavar="W,W,…|NAME",
        role=PLAIN,
    )
    interpolation: str = option(
        "linear",
        "linear; for two models also slerp (one angle a tensor, norms go straight) or slerp-whole (one "
        "angle for all).",
        metavar="HOW",
        kind="interpolation",
        role=PLAIN,
    )
    copy_files: bool = option(False, "Copy configuration and tokenizer, too, into -o DIR/.", role=PLAIN)
    heads: str | None = option(
        None,
        "Of two models with other numbers of classes: keep-a, keep-b, average (those that both "
        "have), concat or drop.",
        metavar="HOW",
        kind="heads",
        role=PLAIN,
    )
    soup: str | None = option(
        None,
        "Average only models by which the loss on test samples falls.",
        choices=SOUPS,
        role=PLAIN,
    )


@dataclass(frozen=True, kw_only=True)
class Averaging(Mean):
    """How models are averaged that are aligned before, or joined by a curve."""

    perm: Path | None = option(
        None, "Use this permutation for the second of two models.", metavar="FILE", role=READS
    )
    curve: Path | None = option(
        None,
        "Write a point of this trained curve between A and B (--at).",
        metavar="FILE",
        role=READS,
    )
    at: float | None = option(None, "Which point of the curve; A is at 0.", metavar="0–1")


@dataclass(frozen=True, kw_only=True)
class AsTheyAre(Mean):
    """How models are averaged tensor by tensor: what is copied, and what not all have."""

    ignore: tuple[str, ...] = option(
        (), "Copy these tensors instead of averaging them; may be repeated.", metavar="GLOB", role=PLAIN
    )
    learnt: tuple[str, ...] = option(
        (),
        "Average these tensors though they look like tables of settings, as anchors that were trained do; "
        "may be repeated.",
        metavar="GLOB",
        role=PLAIN,
    )
    copy_from: Path | None = option(
        None,
        "Whose integers and ignored tensors are copied; else the first's.",
        metavar="FILE",
        role=READS,
    )
    extra: str = option(
        "error",
        "Tensors that not all have: error, keep-a, keep or drop.",
        metavar="HOW",
        kind="extra",
        role=PLAIN,
    )
    rank: str | None = option(
        None,
        "Of adapters: the rank of what is written, the best one, or the share of the sum's energy that it "
        "keeps (0.99); full if left out.",
        metavar="N|SHARE|full",
        kind="rank",
        role=PLAIN,
    )
    base: Path | None = option(
        None,
        "Of adapters: the model that they were trained on. average writes it with their sum in it, apply "
        "reads the places of its units.",
        metavar="MODEL",
        role=READS,
        everywhere=True,
    )


@dataclass(frozen=True, kw_only=True)
class Average(Averaging, AsTheyAre):
    """All of these, with weights as numbers: one a model, adding up to 1; None: equal; or a schedule."""

    weights: Sequence[float] | str | None = None  # type: ignore[assignment]
    schedule: str | None = None  # the name that `weights` were made of

    @property
    def numbers(self) -> Sequence[float] | None:
        """The weights of models that are in order, None for equal ones."""
        return None if isinstance(self.weights, str) else self.weights

    def reference_first(self, paths: Sequence[Path]) -> tuple[Sequence[Path], Average]:
        """The models, and their weights, in an order that begins with the reference. Raises UsageError."""
        reference, weights = self.reference, self.numbers
        if reference is None or not paths:
            return paths, self
        first = next((k for k, path in enumerate(paths) if path.resolve() == reference.resolve()), None)
        if first == 0:
            return paths, self
        if first is None:
            raise UsageError(
                f"--reference {reference} is none of the models",
                problems=[str(path) for path in paths],
                hint="Name one of those that are merged",
            )
        if weights is not None and len(weights) != len(paths):
            checked(weights, len(paths))  # its error
        order = [first, *(k for k in range(len(paths)) if k != first)]
        return [paths[k] for k in order], replace(self, weights=weights and [weights[k] for k in order])

    def in_order(self, paths: Sequence[Path]) -> tuple[Sequence[Path], Average]:
        """The models in the order in which they are merged, with their weights as numbers.

        A schedule orders them by the steps in their names, else the reference comes first. Raises UsageError.
        """
        name = self.weights
        if not isinstance(name, str):
            return self.reference_first(paths)
        equal = replace(self, weights=None, schedule=name)
        weights = schedules.weights_of(name, max(len(paths), 1))
        if name == "uniform":
            return equal.reference_first(paths)
        if self.reference is not None:
            raise UsageError(
                f"--reference puts a model first, --weights {name} orders them by their steps",
                hint="Drop one of the two",
            )
        order = schedules.in_order([str(path) for path in paths])
        return [paths[k] for k in order], replace(equal, weights=weights)

    def check(self, models: int, *, fewest: int = 2) -> None:
        """Raise UsageError for what so many models cannot be averaged like."""
        if self.rank is not None or self.base is not None:
            raise UsageError(
                f"{'--base' if self.rank is None else '--rank'} is for adapters, and none of these is one",
                hint=f"An adapter is a folder with {CONFIG}, or a file of lora_up and lora_down alone",
            )
        if models < fewest:
            raise UsageError(
                "merging takes at least two models", hint="rebasin merge A B … or rebasin average A B …"
            )
        check_interpolation(self.interpolation, models)
        if self.perm and models != 2:
            raise UsageError(
                f"--perm is for the second of two models, not of {models}",
                hint="Apply it first: rebasin apply PERM MODEL -o aligned.safetensors",
            )
        check_choices(self.heads, self.extra, models)
        if self.soup is not None and self.soup not in SOUPS:
            raise unknown("soup", self.soup, SOUPS)
        if self.soup and (self.weights is not None or self.interpolation != "linear"):
            raise UsageError(
                "--soup greedy averages those that it keeps with equal weights",
                hint="Drop --weights and --interpolation",
            )
        if self.soup and (self.heads or self.extra != "error" or self.perm):
            raise UsageError(
                "--soup greedy is for models with the same tensors, without --heads, --extra, --perm"
            )
        if self.numbers is not None:
            checked(self.numbers, models)

    def check_nothing_kept(self, output: Output) -> None:
        """Raise UsageError for a search that should go on, where none is ever kept."""
        if output.resume:
            what = "a soup" if self.soup else "an average without a search"
            raise UsageError(f"--resume: {what} keeps no state", hint="Start it anew, without --resume")

    def asks_for_no_spec(self, asked: Subjects) -> bool:
        """Whether nothing is asked for that takes a spec or a network."""
        return (
            asked.search.method == "none"
            and not (self.perm or asked.loading.spec or asked.network.net or asked.data.data)
            and asked.repair.repair in ("auto", "none")
            and not (asked.repair.new_bias or asked.repair.bake_temperature or self.soup)
        )

    def for_plain_only(self) -> list[str]:
        """The options given that only a plain average takes."""
        given = {
            "--ignore": self.ignore,
            "--learnt": self.learnt,
            "--copy-from": self.copy_from,
            "--extra": self.extra != "error",
        }
        return [option for option, there in given.items() if there]

    def check_aligned(self) -> None:
        """Raise UsageError for what only a plain average takes."""
        for given in self.for_plain_only():
            raise UsageError(
                f"{given} is for plain averages",
                hint="Leave --spec, --net, --data and repairs out",
            )

    def sources(self) -> list[Path]:
        """The files of the models that are read beside those that are averaged."""
        return [file for model in (self.copy_from, self.base) if model for file in of_model(model)]

    def placed(self, output: Output, models: Sequence[Path]) -> Output:
        """The output, in a folder as the first model's where a folder was named. Raises UsageError."""
        from ..verbs import folders

        if output.folder is None:
            if self.copy_files:
                raise UsageError(
                    "--copy-files puts files beside the weights, in a folder",
                    hint="Name one: -o merged/",
                )
            return output
        source = (self.copy_from or models[0]) if self.copy_files else None
        return folders.inside(output, models[0], copy_from=source)
