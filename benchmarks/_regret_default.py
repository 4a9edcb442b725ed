"""What `auto` takes of pairs of other recipes, as in `regret.py`; with longer distillations, and without.

Every pair is trained anew: its recipe is that of its number, none of which is among the recorded cases.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from _regret_cases import Sets, built, lost, outputs_of, recipe, trained
from _rows import line
from torch import Tensor, nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.matchers.portfolio import align, worth
from rebasin_cli.repair.choices import PULL
from rebasin_cli.repair.repair_steps import open_to_choice

LEAST_COST = 1e-6  # of a cost: what differs by less is rounding


def default(least: int, most: int, nets: Sequence[str], budget: str) -> None:
    torch.set_num_threads(1)
    sets, rows = Sets(), []
    columns = ("case", "data", "network", "samples", "recipe", "ends", "ensemble", "wm", "usual", "longer")
    line(*columns, "taken", "s", "least measured")
    print("|---" * 13 + "|")
    for number in range(least, most):
        it = recipe(number)
        if it.net in nets and it.models == 2:
            rows.append(one(number, sets, budget))
            *told, seconds, taken, right = rows[-1]
            how = f"{it.optimizer} {it.rate:g}, {it.norm}, {it.activation}"
            how += ", dropout" * (it.dropout > 0) + ", shifted" * it.augmented + ", noise" * (it.noise > 0)
            shown = [f"{value:.4f}" for value in told]
            network = f"{it.net} {it.width}×{it.depth}"
            line(number, it.data, network, it.samples, how, *shown, taken, f"{seconds:.1f}", right)
    ends, whole, _, usual, longer = (torch.tensor([row[k] for row in rows]) for k in range(5))
    better = longer < usual - 0.001, longer > usual + 0.001
    told = f"longer is better by more than 0.001 in {better[0].sum()}, worse in {better[1].sum()}"
    print(f"\n{len(rows)} pairs: {told}; means {usual.mean():.4f} and {longer.mean():.4f},")
    print(f"ends {ends.mean():.4f}, ensemble {whole.mean():.4f}")


def one(number: int, sets: Sets, budget: str) -> tuple[Any, ...]:
    """Test losses of the ends' mean, the ensemble, wm, and what auto takes, by both; then the second."""
    it = recipe(number)
    train, test, outputs = sets.of(it, number)
    torch.manual_seed(number)
    models, network = [], nn.Module()
    for k in range(2):
        network = built(it, tuple(train.source.inputs.shape[1:]), outputs)
        models.append(trained(network, it, train, 100 * number + k))
    fitted = rebasin_cli.infer_spec(network, train.source.inputs[:2], prove=False).fitted
    loss = F.mse_loss if train.source.targets.is_floating_point() else None
    data, truth = train.with_batch_size(250), test.source

    def answers(tensors: Any) -> Tensor:
        networks.load(network, dict(tensors))
        return outputs_of(network, truth.inputs)

    def of(given: Tensor) -> float:
        return lost(given, truth.targets).mean().item()

    ends = [answers(model) for model in models]
    found = [sum(map(of, ends)) / 2, of(torch.stack(ends).mean(0))]
    normed = networks.has_running_statistics(network)
    common = {"network": network, "train": data, "loss": loss}
    plain = rebasin_cli.merge(models, fitted, repair_with="reset" if normed else "none", **common)
    found.append(of(answers(plain.tensors)))
    seconds, taken, right = 0.0, "", ""
    for longest, samples in ((1, worth.DISTILL_SAMPLES), (worth.LONGEST, worth.MOST_DISTILLED)):
        began = time.process_time()
        with mock.patch.multiple(worth, LONGEST=longest, MOST_DISTILLED=samples):
            aligned = align.align(
                models,
                fitted,
                method="auto",
                options={"budget": budget},
                network=network,
                data=data,
                repairs=open_to_choice("auto", statistics=normed),
                loss=loss,
                prove=False,
            )
        chosen = aligned.result.chosen
        given = {"permutations": aligned.elements, "repaired": chosen.repaired}
        merged = rebasin_cli.merge(models, fitted, repair_with=chosen.repair or "auto", **given, **common)
        seconds = time.process_time() - began
        found.append(of(answers(merged.tensors)))
        taken = f"{chosen.method} + {chosen.repair or 'auto'}"
        right = "yes" if is_least(chosen) else "no"
    return *found, seconds, taken, right


def is_least(chosen: Any) -> bool:
    """Whether what is taken costs least of all that was measured."""
    costs = {
        (row.method, row.repair): row.held_out_loss + PULL * (row.distance or 0.0)
        for row in chosen.tried
        if row.held_out_loss is not None
    }
    mine = [cost for (method, how), cost in costs.items() if method == chosen.method]
    own = costs.get((chosen.method, chosen.repair), min(mine))
    return own <= min(costs.values()) * (1 + LEAST_COST) + LEAST_COST
