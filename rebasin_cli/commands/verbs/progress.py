"""How a search goes, in words for a person."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...matchers import State


def shown(
    step: Callable[[str, int, int | None, str], None], start: State | None = None, *, what: str = "matching"
) -> Callable[[State], None]:
    """What tells a person how a search goes, with the seconds left of all models' where steps are counted."""
    began, first = time.monotonic(), steps(start)[0] if start else 0

    def show(state: State) -> None:
        done, total = steps(state)
        seconds = (time.monotonic() - began) / max(1, done - first)
        step(what, done, total, in_words(state, seconds * ((total or 0) - done)))

    return show


def steps(state: State) -> tuple[int, int | None]:
    """Steps that are done, of how many: over all models, where it is known how many one takes."""
    each = int(state.notes.get("steps", 0))
    before, models = state.notes.get("model", 2) - 2, state.notes.get("models", 2) - 1
    return int(before * each) + state.sweep, int(models * each) or None


def in_words(state: State, left: float = 0.0) -> str:
    """How a search goes; `left` is in seconds."""
    notes = state.notes
    place = f"model {notes['model']:.0f} of {notes['models']:.0f}  " if "model" in notes else ""
    if "polishing" in notes:
        return f"{place}swaps, held-out loss {notes['held_out_loss']:.4f}"
    if "loss" not in notes:
        return f"{place}objective {state.objective:.6g}"
    words = [f"{place}loss {notes['loss']:.4f}"]
    if "held_out_loss" in notes:
        right = f", accuracy {notes['held_out_accuracy']:.4f}" if "held_out_accuracy" in notes else ""
        words.append(f"held-out loss {notes['held_out_loss']:.4f}{right}")
    if "changed" in notes:
        words.append(f"{100 * notes['changed']:.1f}% of units moved")
    return "  ".join([*words, *[f"{left:.0f} s left"] * (left > 0)])
