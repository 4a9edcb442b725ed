"""What a saved object holds: named tensors in a tree of dictionaries, and what beside them is no weights.

`look` walks the object once. What belongs to the run that saved it (an optimizer's state, a scheduler's,
records of losses, random states) is told by its shape or by its name, and left out with a word on it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..errors import CheckpointError
from .containers import holding
from .inert import kind

MAX_DEPTH = 64  # dictionaries in one another
SHOWN = 100  # characters of a name that are looked at for words
MAX_AGAIN = 50_000  # entries that are looked at once more under another name
Path = tuple[Any, ...]  # the keys that lead to a value, as they are stored


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Averaged copies of the weights, by what people call them; and copies of any kind.
AVERAGED = _words("ema swa shadow averaged average avg polyak")
COPIES = AVERAGED | _words(
    "target teacher best old prev previous last init initial momentum backup anchor ref reference fisher"
)
# Parts that play another role than the network beside them, though they may have the same sizes.
ROLES = _words(
    "g d q qf q1 q2 qf1 qf2 netg netd generator discriminator critic actor policy value encoder decoder head "
    "classifier predictor projector text vision visual image"
)
_OPTIMIZER = _words("optimizer optimizers optim optims opt opts")
_MOMENTS = _words("exp_avg exp_avg_sq max_exp_avg_sq momentum_buffer")
_SETTINGS = _words("hparams hyper config cfg args arguments settings options")
_RECORDS = _words(
    "loss losses history metric metrics acc accs accuracy accuracies score scores confusion confmat cm lr "
    "lrs psnr ssim fid curve curves reward rewards return returns err errs errors ppl perplexity auc iou miou"
)
# What plain numbers beside weights are called that were measured of them: no tensor is judged by these.
_MEASURED = _words(
    "prec recall top1 top5 f1 bleu rouge wer cer mse mae rmse kl elbo ece best result results performance"
)
_PROGRESS = _words("best epoch epochs step steps iter iters iteration global time seed total num count n")
_WEIGHTS = _words(
    "weight weights bias mean std var alpha beta gamma tau sigma scale temperature temp embedding emb"
)
RECORD = "a record of training"
OPTIMIZER = "an optimizer's state"
STATES = {
    RECORD,
    OPTIMIZER,
    "a gradient scaler's state",
    "a scheduler's state",
    "a random state",
    "the run's state",
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@dataclass(eq=False)
class Node:
    """One dictionary or list that holds tensors, itself or further in.

    `weight` counts the values of what can be weights: floating point, and more than a number by itself.
    """

    path: Path
    tensors: dict[Any, Tensor] = field(default_factory=dict)
    inner: dict[Any, Node] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)  # by name: what is no tensor, or no weights
    listed: bool = False  # a list: its entries have numbers, not names
    weight: int = 0

    def all(self) -> Iterator[Node]:
        """This one and all within it, in the file's order."""
        yield self
        for node in self.inner.values():
            yield from node.all()

    def own_weights(self) -> bool:
        return any(is_weights(key, tensor) for key, tensor in self.tensors.items())


def look(saved: Any, path: Path = ()) -> Node:
    """The tree of `saved`, without what holds no tensor.

    `path` leads to it. Raises CheckpointError where dictionaries lie too deep in one another.
    """
    saved = state_of(saved)
    return _Walk(holding(saved)).look(saved, path)


def state_of(value: Any) -> Any:
    """A network's state dict, and any other value as it is."""
    return value.state_dict() if isinstance(value, nn.Module) else value


def entries(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """Keys and values of a dictionary, numbers and values of a list; None of anything else."""
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (list, tuple)):
        return iter(enumerate(value))
    return None


def text_of(key: Any) -> str | None:
    """A key as part of a name; None of what cannot be one."""
    if isinstance(key, str):
        return key
    if type(key) is int:
        return str(key)
    if isinstance(key, tuple) and key and all(isinstance(part, (str, int)) for part in key):
        return ".".join(map(str, key))
    return None


def dotted(path: Path) -> str:
    """A way through dictionaries and lists as it is named: "model.layers.0"."""
    return ".".join(text_of(key) or repr(key) for key in path)


def words(key: Any) -> frozenset[str]:
    """The words of a name, in small letters: of "netG_ema" net, g and ema."""
    return _words_in((text_of(key) or "")[:SHOWN])


@functools.lru_cache(1 << 14)
def _words_in(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(name)) | {name.lower()}


def is_weights(key: Any, tensor: Tensor) -> bool:
    """Whether a tensor that lies beside others may be weights, rather than a number of the run's."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    found = words(key)
    if tensor.numel() == 1:
        named = bool(found & _WEIGHTS) and not found & (_RECORDS | _PROGRESS)
        return named or isinstance(tensor, nn.Parameter)
    return tensor.numel() > 1 and (not found & _RECORDS or bool(found & _WEIGHTS))


def records(key: Any) -> bool:
    """Whether a name is of what was measured of a model, such as its best accuracy."""
    found = words(key)
    return bool(found & _RECORDS) and not found & _WEIGHTS


def measured(key: Any) -> bool:
    """Whether a number that is called so was measured of the weights beside it, unless it is a setting."""
    found = words(key)
    return bool(found & (_RECORDS | _MEASURED)) and not found & (_WEIGHTS | {"epoch", "step", "iter"})


def settings(key: Any) -> bool:
    """Whether what lies under this name was given to a training, whatever its parts are called."""
    return key == "lr" or bool(words(key) & (_SETTINGS | {"kwargs", "opt"}))


class _Walk:
    """One look at all, each object once: a pickle may hold itself, or one dictionary under many names.

    What has two names is looked at twice, as far as that costs little.
    """

    def __init__(self, holding: set[int]) -> None:
        self.holding = holding  # what leads to a tensor; nothing else is looked into
        self.seen: dict[
            int, tuple[Path, Any]
        ] = {}  # objects are kept, so that nothing else gets their number
        self.sizes: dict[int, int] = {}  # of those that were looked at to their end
        self.size, self.again = 0, MAX_AGAIN

    def look(self, value: Any, path: Path) -> Node:
        if len(path) > MAX_DEPTH:
            raise CheckpointError(
                f"{dotted(path)[:80]}…: more than {MAX_DEPTH} dictionaries lie in one another",
                hint="Save the weights alone: torch.save(model.state_dict(), 'weights.pt')",
            )
        self.seen[id(value)] = path, value
        before = self.size
        node, of_the_run = Node(path, listed=not isinstance(value, Mapping)), False
        for key, item in entries(value) or ():
            self.size += 1
            if node.listed and isinstance(item, (str, int, float)):
                continue  # a list of numbers may be long, and is told as one
            held, name, item = _held(item, self.holding), text_of(key), state_of(item)
            if isinstance(item, Tensor) and name and "." in name:
                node.tensors[key] = item  # as in every state dict: no word on the rest
            elif name is None:
                node.beside[f"{kind_of(key)} as a key"] = kind_of(item)
            elif (what := run_state(key, item)) is not None:
                node.beside[name], of_the_run = what, True
            elif isinstance(item, Tensor):
                node.tensors[key] = item
            elif not held or name.endswith("_extra_state"):
                node.beside[name] = kind(item)
            elif self.known(item):
                node.beside[name] = f"the same as {dotted(self.seen[id(item)][0]) or 'the whole'}"
            else:
                child = self.look(item, (*path, key))
                if not child.tensors and not child.inner:
                    told = set(child.beside.values())
                    states = len(told) == 1 and told <= STATES
                    node.beside[name] = told.pop() if states else kind(item)
                elif _is_record(key, child):
                    node.beside[name], of_the_run = RECORD, True
                else:
                    node.inner[key] = child
        if node.inner or of_the_run:
            _leave_records(node)
        node.weight = _weight(node)
        self.sizes[id(value)] = self.size - before
        return node

    def known(self, item: Any) -> bool:
        """Whether this is not to be looked at again: what it lies in, or what would be too much."""
        if id(item) not in self.seen:
            return False
        self.again -= self.sizes.get(id(item), MAX_AGAIN) + 1
        return self.again < 0


def _held(item: Any, holding: set[int]) -> bool:
    return isinstance(item, nn.Module) or (id(item) in holding and entries(item) is not None)


def kind_of(value: Any) -> str:
    """What a value is, with its article: "a list", "an argparse.Namespace"."""
    word = kind(value)
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def run_state(key: Any, item: Any) -> str | None:
    """What an entry is that is no part of a model; None of what may be one."""
    is_mapping = isinstance(item, Mapping)
    if is_mapping and "param_groups" in item and "state" in item:
        return OPTIMIZER
    if is_mapping and "growth_factor" in item:
        return "a gradient scaler's state"
    if not isinstance(item, (Mapping, list, tuple, Tensor)) or (isinstance(key, str) and "." in key):
        return None
    found = words(key)
    if key in _MOMENTS or (found & _OPTIMIZER):
        return OPTIMIZER
    if found & {"scheduler", "schedulers", "sched"}:
        return "a scheduler's state"
    if found & {"grad", "grads", "gradient", "gradients"}:
        return "gradients"
    if found & {"replay", "rollout", "rollouts"}:
        return "a buffer of samples"
    if found & {"rng", "rngs", "random"} and _no_floats(item):
        return "a random state"
    if found & _SETTINGS and not isinstance(item, Tensor) and not _no_floats(item):
        return "settings"
    if found & {"callbacks", "loops"}:
        return "the run's state"
    return None


def _no_floats(item: Any, depth: int = 0) -> bool:
    if isinstance(item, Tensor):
        return not item.is_floating_point()
    return depth < 4 and all(_no_floats(inner, depth + 1) for _, inner in entries(item) or ())


def _is_record(key: Any, node: Node) -> bool:
    """Whether this is what was noted during training: numbers one by one, or vectors under such a name."""
    if node.inner:
        return False
    numbers = all(tensor.numel() == 1 for tensor in node.tensors.values())
    if node.listed and numbers:
        return True
    if not records(key):
        return False
    return not any(
        (tensor.ndim > 1 and not node.listed) or words(name) & _WEIGHTS
        for name, tensor in node.tensors.items()
    )


def _leave_records(node: Node) -> None:
    """Beside sets of weights a tensor may be a record of the run's; in a state dict it is not."""
    for key, tensor in list(node.tensors.items()):
        found = words(key)
        if "." in (text_of(key) or "") or is_weights(key, tensor) or not found & (_RECORDS | _PROGRESS):
            continue
        if not found & _WEIGHTS:
            node.beside[text_of(key) or ""] = "a number" if tensor.numel() == 1 else RECORD
            del node.tensors[key]


def _weight(node: Node) -> int:
    """Values in what can be weights. In a state dict all floating point is, unless all are bare numbers."""
    floats = {key: t for key, t in node.tensors.items() if t.is_floating_point() or t.is_complex()}
    every = not node.inner and any(tensor.ndim for tensor in floats.values())
    own = sum(max(1, tensor.numel()) for key, tensor in floats.items() if every or is_weights(key, tensor))
    return own + sum(inner.weight for inner in node.inner.values())
