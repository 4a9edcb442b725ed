"""What the names of values beside weights tell: whether they are of the model, of its training, or counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .saved import words


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of names that say how a model was trained or measured, and not what it is
RECORDS = _set(
    "optim optimizer optimizers loader loaders dataloader aug augs augment augmentation augmentations "
    "transform transforms loss losses criterion trainer training callback callbacks log logs logger "
    "loggers logging teacher metric metrics result results score scores reward rewards record records "
    "history best summary cv fold folds perf performance acc accuracy error errors mse rmse mae time "
    "times timing"
)
PARTS = _set("train val valid validation eval evaluation evaluator test tests")
DATA = _set("data dataset datasets datamodule")
# Means and deviations of what is drawn or measured, and no scaling
DRAWN = _set(
    "noise init initializer prior posterior logit logits p grad grads gradient return returns advantage"
)
SETTINGS = _set(
    "args arg hparams hyper parameters params config cfg conf opt opts options settings kwargs flags"
)
SETTINGS |= _set("run runs meta metadata info state system counters env environment")
# What numbers are given to that are no names' numbers; and lists whose order says nothing
COUNTED = _set(
    "count counts weight weights freq frequency frequencies sample samples prior priors cost costs size"
)
COUNTED |= _set("sizes per hist histogram smoothing threshold thresholds balance distribution")
UNORDERED = _set(
    "tag tags module modules gpu gpus device devices node nodes host hosts split splits freeze frozen"
)
UNORDERED |= _set(
    "unfreeze exclude excluded include included ignore ignored file files path paths dir dirs ext"
)
UNORDERED |= _set("version versions package packages key keys layer layers run runs plugin plugins project")
NO_NAMES = _set(
    "seed epoch epochs step steps fold gpu rank lr batch size num n version workers verbose debug index"
)
LETTERS = _set("char chars character characters charset alphabet vocab vocabulary letters symbols")
NAMED = re.compile(
    r"class|label|categor|names$|vocab|token|word|char|alphabet|stoi|itos|idx|2id|id2|to_id|to_ix"
)
OF_CLASSES = re.compile(r"class|label|categor|names$")
ARE_CLASSES = re.compile(r"(class(es)?|labels?|categor(y|ies)|names|class_?order)_?$")


def is_named(key: str) -> bool:
    """Whether what is called so, by its last part, has names."""
    return NAMED.search(key.rpartition(".")[2].casefold()) is not None


def is_of_training(key: str) -> bool:
    """Whether what lies under this name is of a training, and not of the model."""
    own = words(key)
    return bool(own & RECORDS or (own & PARTS and not own & DATA))


def may_number(path: tuple[str, ...], value: str | list[Any] | tuple[Any, ...] | Mapping[Any, Any]) -> bool:
    """Whether this may say which number a name has: no counts of them, no settings, no heap of names."""
    own = words(path[-1])
    if own & RECORDS or any(words(part) & COUNTED for part in path):
        return False
    if isinstance(value, str):
        return bool(own & LETTERS)
    if isinstance(value, list | tuple):
        return not own & UNORDERED
    if is_named(path[-1]):
        return True
    return not (own & SETTINGS or any(words(name) & NO_NAMES for name in value if isinstance(name, str)))


def is_drawn(path: tuple[str, ...], name: str) -> bool:
    """Whether a mean that is called so was drawn or measured, and scales nothing."""
    around = words(path[-1]) if path and not is_settings(path) else frozenset[str]()
    return bool((words(name) | around) & DRAWN or words(name) & (RECORDS | PARTS - {"train"}))


def is_settings(path: tuple[str, ...]) -> bool:
    """Whether what lies there are settings of all kinds."""
    return bool(path) and bool(words(path[-1]) & SETTINGS)
