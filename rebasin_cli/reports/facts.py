"""How a report's figures came about, as sentences: match, learning, proof, data, spec, seed, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

from ..runtime.text import clean
from . import Measured
from .accounts import OWN_INPUTS, outputs_in_words, tried_in_words
from .document import Block, Command, Facts, On
from .format import best, duration, fixed, is_number, learning, number


def facts(report: Measured, match: Mapping[str, Any], proof: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(word, sentence) on how the figures came about: match, proof, data, spec, seed; no times."""
    lines = [
        ("match", _match(match)),
        ("tried", clean(tried_in_words(match))),
        ("learning", _learning(learning(match))),
        ("proof", _proof(proof)),
        ("data", _data(report.data)),
        ("spec", _spec(report.spec)),
        ("seed", f"{report.seed}; measured with rebasin {clean(report.rebasin)}"),
    ]
    return [(word, text) for word, text in lines if text]


def ends(found: Mapping[str, Any], line: str) -> list[Block]:
    """What a document of a command ends with: the line that measures it again, what was written, times."""
    return [
        Command("Measure it again", line),
        Facts("", [("written", str(path)) for path in found.get("written") or ()], on=On.TERMINAL),
        Facts("", [("took", took(found["times"]))] if found["times"] else [], on=On.WRITTEN),
    ]


def took(times: Mapping[str, float]) -> str:
    """The line on times, which stands last and alone: identical runs differ in nothing else."""
    rest = [f"{clean(word)} {duration(seconds)}" for word, seconds in times.items() if word != "total"]
    if "total" not in times:
        return ", ".join(rest)
    return ", ".join([duration(times["total"]), *([f"of which {', '.join(rest)}"] if rest else [])])


def _match(match: Mapping[str, Any]) -> str:
    start = f" from {clean(match['init'])}" if match.get("init") else ""
    mix = f" with mix {number(match['mixed']['mix'])}" if match.get("mixed") else ""
    repair = f" + {clean(match['repair'])}" if match.get("repair", "none") != "none" else ""
    chosen = f": {clean(match['chosen'])}{repair}" if match.get("chosen") else ""
    parts = [clean(match.get("method", "none")) + chosen + start + mix]
    if match.get("sweeps") is not None:
        word = "step" if match.get("history") else "sweep"
        parts.append(f"{number(match['sweeps'])} {word}{'' if match['sweeps'] == 1 else 's'}")
    if match.get("objective_before") is not None:
        ends: Sequence[Any]
        word, ends = "objective", (match["objective_before"], match.get("objective_after"))
        if match.get("history") and all(map(is_number, ends)):  # a loss, negative
            word, ends = "held-out loss", tuple(-end for end in ends)
        parts.append(f"{word} {number(ends[0])} → {number(ends[1])}")
    if match.get("upper_bound") is not None:
        every = "element of the groups" if match.get("bounded") else "permutation"
        parts.append(f"at most {number(match['upper_bound'])} for any {every}")
    return ", ".join(parts)


def _learning(rows: Sequence[Mapping[str, float]]) -> str:
    if not rows:
        return ""
    first, kept, last = (fixed(row["held_out_loss"]) for row in (rows[0], best(rows), rows[-1]))
    ends = best(rows)["step"], rows[-1]["step"]
    return f"held-out loss {first} → {kept} (best, step {ends[0]:.0f}) → {last} (step {ends[1]:.0f})"


def _proof(proof: Mapping[str, Any]) -> str:
    reason = f": {clean(proof['reason'])}" if proof.get("reason") else ""
    if proof.get("status") == "proven":
        largest = proof.get("largest_difference")
        measured = f" (largest difference {number(largest)})" if largest is not None else ""
        on = f" on {clean(proof.get('network'))} (give yours with --net)" if proof.get("assumed") else ""
        outputs = outputs_in_words(proof)
        told = f"proven{on}, the permuted network's outputs are the same{measured}"
        return f"{told}; {outputs}" if outputs else told
    return f"not proven ({clean(proof.get('status', 'unavailable'))}){reason}"


def _data(data: Mapping[str, Any]) -> str:
    sizes = data.get("samples") or {}
    counts = " and ".join(f"{number(count)} {clean(split)}" for split, count in sizes.items())
    parts = [
        clean(data.get("name", "")),
        _inputs(data.get("normalization")),
        f"{counts} {clean(data.get('unit') or 'samples')}" if counts else "",
        "everything measured in full" if data.get("full") else "",
    ]
    return ", ".join(part for part in parts if part)


def _inputs(normalization: Any) -> str:
    if normalization == OWN_INPUTS:
        return "inputs as the loader yields them"
    return f"normalised by mean/std {clean(normalization)}" if normalization else ""


def _spec(spec: Mapping[str, Any]) -> str:
    words = spec.get("words")
    words = len(words) if isinstance(words, Sized) and not isinstance(words, str) else words
    parts = [clean(spec.get("name", ""))]
    if words is not None:
        parts.append(f"{number(words)} permutation{'' if words == 1 else 's'}")
    if spec.get("log10_symmetries") is not None:
        parts.append(f"about 10^{_rounded(spec['log10_symmetries'])} symmetries")
    if is_number(spec.get("moved_share")):
        parts.append(f"{100 * spec['moved_share']:.1f}% of the parameters have a permuted axis")
    return ", ".join(part for part in parts if part)


def _rounded(value: Any) -> str:
    return f"{value:.0f}" if is_number(value) else fixed(value)
