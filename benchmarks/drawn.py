"""Infer and prove networks drawn from installed packages by a seed: nobody has seen which before they run.

    python benchmarks/drawn.py [--seed N] [--each N] [--packages NAME,…] [--limit SECONDS]

Classes of transformers are made small by their configuration, as twins are; networks of timm and
torchvision are as large as their names say, images as small as they take. What a spec moves is judged
without the proof, by weights, inputs and orders of `mutations.py`, in float64: "unsound" is what differs
there. A network that cannot be made small, or whose batch nobody here draws, is told as left out, and
counts for nothing. Exits with 1 for what is unsound, and for errors that are no message.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import mutations
import torch
from packages import torchvision

from rebasin_cli.errors import RebasinError
from rebasin_cli.inference import infer
from rebasin_cli.networks.hub import batches
from rebasin_cli.networks.hub.configurations import SIZES, made_small
from rebasin_cli.runtime.seeds import generator

HEADING = ("date", "package", "network", "outcome", "words", "log10", "moved", "processor s", "why")
LARGEST, SIDE, DRAWS = 40_000_000, 64, 2
TASKS = ("CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION", "SEQ_TO_SEQ_CAUSAL_LM", "SEQUENCE_CLASSIFICATION")
TASKS += ("SEMANTIC_SEGMENTATION", "CTC", "DEPTH_ESTIMATION", "QUESTION_ANSWERING", "VIDEO_CLASSIFICATION")


class LeftOut(Exception):
    """It cannot be made small enough, or given a batch, here."""


class OutOfTime(BaseException):
    """Of the processor, for one network."""


def of_transformers() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """Name and maker of every class of the tasks above."""
    import transformers
    from transformers.models.auto import modeling_auto

    names = {
        name
        for task in TASKS
        for its in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values()
        for name in ([its] if isinstance(its, str) else its)
    }

    def make(name: str) -> tuple[Any, Any]:
        kind = getattr(transformers, name)
        small = made_small(kind.config_class(), SIZES[0])
        config = kind.config_class() if small is None else small
        network = limited(lambda: kind(config))
        batch = batches.of_transformers(network, config)(generator(0, name))
        if "use_cache" in vars(config):
            config.use_cache = False
        return network, batch

    for name in sorted(names):
        yield name, lambda name=name: make(name)


def of_timm() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    import timm

    def make(name: str) -> tuple[Any, Any]:
        network: Any = limited(lambda: timm.create_model(name, pretrained=False, num_classes=5))
        size = network.pretrained_cfg
        side = (
            size["input_size"][-1] if size.get("fixed_input_size") else max(SIDE, size["input_size"][-1] // 3)
        )
        return network, torch.rand(2, 3, side, side)

    for name in timm.list_models():
        yield name, lambda name=name: make(name)


def of_torchvision() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    models = torchvision().models

    def make(name: str) -> tuple[Any, Any]:
        network = limited(lambda: models.get_model(name, weights=None))
        side = 224 if "vit" in name or "maxvit" in name else 299 if "inception" in name else SIDE
        return network, torch.rand(2, 3, side, side)

    for name in models.list_models(module=models):
        yield name, lambda name=name: make(name)


def limited(make: Callable[[], Any]) -> Any:
    """What `make` makes, unless it is too large: counted without memory, where it can be made so."""
    with contextlib.suppress(NotImplementedError), torch.device("meta"):
        count = sum(tensor.numel() for tensor in make().parameters())
        if count > LARGEST:
            raise LeftOut(f"{count:,} parameters")
    return make().eval()


PACKAGES = {"transformers": of_transformers, "timm": of_timm, "torchvision": of_torchvision}


def tried(make: Callable[[], tuple[Any, Any]], limit: int) -> tuple[str, tuple[Any, ...]]:
    """What became of one network: its outcome and the other cells."""
    began = time.process_time()
    signal.signal(signal.SIGPROF, _out_of_time)
    try:
        try:
            torch.manual_seed(0)
            network, batch = make()
            args, kwargs = ((), batch) if isinstance(batch, dict) else ((batch,), {})
            with torch.no_grad():
                network(*args, **kwargs)
        except Exception as cause:  # of packages, for a configuration or batch that nobody has tried
            raise LeftOut(f"{type(cause).__name__}: {cause}") from None
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, limit)
        found = infer(network, args, kwargs)
        case = mutations.Case(network, found.fitted, batch, found.not_kept)
        cells = len(found.fitted.words), f"{found.fitted.log10_symmetries():.1f}"
        cells = (*cells, f"{found.fitted.moved_share():.0%}", f"{time.process_time() - began:.1f}", "")
        if found.fitted.words and mutations.is_wrong(case, found.fitted, 7, DRAWS):
            return "unsound", cells
        return "proven" if found.proof is not None else "nothing moves", cells
    except LeftOut as cause:
        outcome, why = "left out", cause
    except OutOfTime:
        outcome, why = "out of time", f"more than {limit} processor seconds"
    except RebasinError as cause:
        outcome, why = "refused", cause
    except Exception as cause:
        outcome, why = "traceback", f"{type(cause).__name__}: {cause}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    told = " ".join(str(why).split())[:160].replace("|", "/")
    return outcome, ("", "", "", f"{time.process_time() - began:.1f}", told)


def _out_of_time(*_: Any) -> None:
    raise OutOfTime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=10, metavar="N", help="networks of each package (10)")
    parser.add_argument("--packages", default=",".join(PACKAGES), metavar="NAME,…")
    parser.add_argument("--limit", type=int, default=120, metavar="SECONDS", help="of one network (120)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torchvision()
    print(mutations.line(HEADING), mutations.line(["---"] * len(HEADING)), sep="\n", flush=True)
    total: Counter = Counter()
    for package in options.packages.split(","):
        known, counted = sorted(PACKAGES[package](), key=lambda one: one[0]), 0
        random.Random(f"{options.seed} {package}").shuffle(known)
        for name, make in known:
            if counted == options.each:
                break
            outcome, cells = tried(make, options.limit)
            counted += outcome != "left out"
            total[outcome] += 1
            print(mutations.line((date.today(), package, name, outcome, *cells)), flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in total.items()))
    sys.exit(bool(total["unsound"] or total["traceback"]))


if __name__ == "__main__":
    main()
