"""`--held-out`: samples that no endpoint was trained on, to choose by; the test split without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import datasets
from ..datasets import SPLITS
from ..errors import DataError, UsageError
from ..registry import is_reference
from ..registry.numbers import real
from ..runtime.seeds import derive

HOW = "Give a fraction of the test split (0.1), a split (test), or a data set whose test split they are"


@dataclass(frozen=True)
class HeldOut:
    """What was asked for: a `fraction` of the test split; else a split of a data set, by its reference."""

    text: str
    fraction: float | None = None
    split: str = "test"
    reference: str | None = None  # None: the data set that the models are measured on

    @staticmethod
    def parse(text: str) -> HeldOut:
        """Raise UsageError for what is none of the three."""
        try:
            fraction = real(text)
        except ValueError:
            pass
        else:
            if not 0 < fraction < 1:
                raise UsageError(f"--held-out {text}: a fraction lies between 0 and 1", hint=HOW)
            return HeldOut(text, fraction)
        if is_reference(text) or text.partition(":")[0] in datasets.registry.names():
            return HeldOut(text, reference=text)
        if not text.isidentifier():
            raise UsageError(f"--held-out {text!r} is no fraction, split or data set", hint=HOW)
        return HeldOut(text, split=text)

    @property
    def unseen(self) -> bool:
        """Whether no endpoint was trained on them, as far as their split's name says."""
        return self.split != "train"

    def check(self, *, measured: bool) -> None:
        """Raise UsageError where nothing of the test split is left to be `measured`."""
        if measured and self.reference is None and self.fraction is None and self.split == "test":
            raise UsageError(
                "--held-out test leaves no test samples to measure on",
                hint="Hold a part of them out, such as --held-out 0.1",
            )

    def open(self, reference: str, load: Callable[[str, str], Any], seed: int) -> Any:
        """The samples; `load` opens a split of a data set by its reference.

        Raises UsageError for a split that there is not, DataError as `load` does, and where nothing is in it.
        """
        if self.fraction is not None:
            return self.parted(load(reference, "test"), seed)[1]
        if self.reference is None and self.split not in SPLITS and not is_reference(reference):
            raise UsageError(f"--held-out {self.text}: {reference} has no such split", hint=HOW)
        return load(self.reference or reference, self.split)

    def parted(self, test: Any, seed: int) -> tuple[Any, Any]:
        """The test split without these samples, and these; all of it, and none, where they are others."""
        if self.fraction is None:
            return test, None
        size, drawn = round(self.fraction * test.samples), derive(seed, "held out of the test split")
        if not 0 < size < test.samples:
            raise DataError(
                f"--held-out {self.text} of {test.samples} test samples are {size}: both parts need some",
                hint=HOW,
            )
        return test.subset(test.samples - size, drawn, skip=size), test.subset(size, drawn)

    def account(self, samples: int | None = None) -> Mapping[str, Any]:
        """For reports and provenance."""
        told: dict[str, Any] = {"fraction": self.fraction} if self.fraction else {"split": self.split}
        if self.reference:
            told["data"] = self.reference.partition(":")[0]
        return told | ({} if samples is None else {"samples": samples})
