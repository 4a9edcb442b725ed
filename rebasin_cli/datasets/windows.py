"""Text as samples: windows of characters side by side, each with the characters that come next.

A sample is a window. Every character but the first and a rest at the end of a split is predicted once. The
last tenth of a text is its test split; the vocabulary is that of the whole.
"""

from __future__ import annotations

import numpy as np
import torch

from ..errors import DataError
from ..runtime.memory import check_memory
from .samples import SPLITS, Samples

WINDOW = 64  # characters
SHARE = 10  # one character of so many is held out
BYTES = 24  # of memory a character, while it is numbered


def windows(text: str, split: str, where: str, window: int = WINDOW) -> Samples:
    """One split of a text. Raises DataError where a split would be less than a window."""
    check_memory(f"{where}: {len(text):,} characters take", BYTES * len(text))
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known, numbers = np.unique(codes, return_inverse=True)
    cut = len(text) - len(text) // SHARE
    parts = dict(zip(SPLITS, (numbers[:cut], numbers[cut:]), strict=True))
    if short := [f"{name}  {len(part):,} characters" for name, part in parts.items() if len(part) <= window]:
        raise DataError(
            f"{where} is too short: {len(text):,} characters, of which the last tenth is the test split",
            problems=short,
            hint=f"A split needs {window + 1} characters at least.",
        )
    if len(known) < 2:
        raise DataError(f"{where} has one character only, {chr(known[0])!r}: there is nothing to predict")
    chosen = torch.from_numpy(parts[split].astype(np.int64))
    count = (len(chosen) - 1) // window
    inputs, targets = (chosen[start : start + count * window].view(count, window) for start in (0, 1))
    return Samples(inputs, targets, "".join(map(chr, known)))


def spelled(samples: Samples, vocabulary: str, where: str) -> Samples:
    """The same text in the numbers of another vocabulary. Raises DataError for characters it has not."""
    own = samples.vocabulary
    if own is None or own == vocabulary:
        return samples
    numbers = {character: number for number, character in enumerate(vocabulary)}
    present = torch.cat([samples.inputs.flatten(), samples.targets.flatten()]).unique().tolist()
    lost = [own[k] for k in present if own[k] not in numbers]
    if lost:
        raise DataError(
            f"{where} has {len(lost)} characters that the model's vocabulary of {len(vocabulary)} has not",
            problems=[f"{character!r}  U+{ord(character):04X}" for character in lost],
            hint="Measure on text of the characters that the model was trained on",
        )
    table = torch.tensor([numbers.get(character, 0) for character in own])
    return Samples(table[samples.inputs], table[samples.targets], vocabulary)
