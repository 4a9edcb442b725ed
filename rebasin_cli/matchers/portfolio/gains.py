"""What a search of `auto` gains, as recorded merges tell: what gains next to nothing is not worth its time.

Every merge of benchmarks/regret.py begins with weight matching and its quick repairs, a refit among them.
What it costs more then than its endpoints' mean answer loses is left to gain, and of that another search
takes a share in the median: with its quick repairs, or beside a distillation that comes in any case,
distilled like that. `regret.py budgets` prints the table, and what is saved and lost by it. A table for each
kind of network is no better. Of searches for more than two models too few are recorded.

Of what learns and swaps 15 pairs are recorded, nearly all of MLPs. There it gains nothing; on the one vision
transformer it gained where nothing was distilled. So it has no smaller share than `am` there.
"""

from __future__ import annotations

import math

NOISE = 0.002  # nats; less is not told from nothing by two thousand samples
LONGER = "distill longer"  # on more samples than usual
SHARES = {  # of what is left to gain: without a distillation, and beside one
    "am": (0.05, 0.0),
    "dual": (0.07, 0.04),
    "ste": (0.05, 0.0),
    "polish": (0.05, 0.0),
    LONGER: (0.14, 0.14),
}


def needless(step: str, left: float, *, distilled: bool) -> str:
    """Why a step is not worth being tried where so many nats are `left` to gain; "" where it is.

    `distilled`: the best merge is distilled in the end. Nothing is where nobody knows what is left: it is
    infinite then.
    """
    share = SHARES.get(step, (1.0, 1.0))[distilled]
    if math.isinf(left) or share * left >= NOISE:
        return ""
    return f"not tried: on recorded pairs it takes {share:.0%} of what is left, here less than {NOISE:g} nats"
