"""What files say of themselves: records, reports, folds, curves. Anything may stand there."""

import copy
import json
import re
import struct

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.spec import library
from tests.cli.conftest import rebasin

from ._records import FOLDS, MADE, SHAPES, SPEC, changed, everywhere, report, write_elements, write_record

ODD = [None, [], {}, "x", 1, -1, True, 1.5, float("nan"), [1], [None], {"a": 1}, 10**400, 2**63]
NO_JSON = [
    "",
    "{",
    "x",
    "[" * 100_000,
    "[" * 2_000 + "]" * 2_000,
    '{"a":' * 3_000 + "1" + "}" * 3_000,
    "9" * 5_000,
]
WRONG_JSON = ["null", "1", "NaN", '"ab"', "true", "1e999"]
LIVE = [
    "<img src=x onerror=alert(1)>",
    "a|<img src=x>|b",
    "`|`<img src=x>",
    "x`` <img src=x>",
    "\\|<img src=x>",
    "[x](http://evil.example) www.evil.example",
    "![x](//evil.example) @someone <a href=x>",
    "a\n\n# head\n<img src=x>",
    "---\nlicense: mit\n---",
    "\x1b[2J\x07\u202e\u2028",
    "&lt;img&gt; &#60;img src=x>",
]


def refused_in_one_message(line, *, codes=(3,)):
    outcome = rebasin(*line)
    assert outcome.code in codes and in_one_message(outcome), (line, outcome.code, outcome.err[-400:])
    return outcome


def in_one_message(outcome):
    return len(re.findall("(?m)^rebasin: ", outcome.err)) == 1 and "Traceback" not in outcome.err


def dead(text):
    """No markup of what a file says lives in this Markdown: outside of code, every sign is escaped."""
    rows = [row for row in text.splitlines() if row.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows if "fact" not in row), text
    plain = re.sub(r"(?s)(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", re.sub(r"\\[!-/:-@\[-`{-~]", "", text))
    assert not re.search(r"(?i)<(?!/?code>)|\]\(|www\.|://|@|\x1b|\u202e|\x07", plain), text


@pytest.mark.parametrize("key", [*MADE, "rebasin.<img src=x>|", "rebasin.train_accuracy"])
def test_what_a_model_records_is_shown_and_no_markup(key, tmp_path):
    for text in LIVE:
        if key in ("rebasin.command", "rebasin.options", "rebasin.inputs"):
            continue
        write_record(**{key.removeprefix("rebasin."): text})
        assert rebasin("card", "m.safetensors", "--force").code == 0, text
        card = (tmp_path / "README.md").read_text()
        assert card.count("---\n") - card.count("\n## ") < 3 and "\n# head" not in card
        dead(card.split("---\n", 2)[2])


def test_what_options_and_inputs_hold_is_shown_and_no_markup(tmp_path):
    for text in LIVE:
        options = json.dumps({"chosen": text, "kept": [text], "soup": [text]})
        write_record(method="auto", options=options, inputs=json.dumps([text, text]))
        assert rebasin("card", "m.safetensors", "--force").code == 0, text
        dead((tmp_path / "README.md").read_text().split("---\n", 2)[2])


def test_records_that_are_none_are_refused():
    wrong = [*NO_JSON, *WRONG_JSON]
    for key, texts in {
        "rebasin.options": [*wrong, "[]", '{"kept": 1}', '{"kept": [1]}', '{"kept": {}}', '{"kept": [[]]}'],
        "rebasin.inputs": [*wrong, "{}", "[1]", "[null]", "[[]]", '[{"a": 1}]'],
    }.items():
        for text in texts:
            write_record(**{key.removeprefix("rebasin."): text})
            outcome = refused_in_one_message(("card", "m.safetensors"))
            assert "what it records of its making is damaged" in outcome.err and key in outcome.err


def test_half_of_a_surrogate_pair_is_no_text(tmp_path):
    """JSON can escape it, and nothing that is written later could hold it."""
    one = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    for header in (
        '{"\\ud800":' + one + "}",
        '{"a\\udfffb.weight":' + one + "}",
        '{"__metadata__":{"rebasin.spec":"\\ud800"},"w":' + one + "}",
        '{"__metadata__":{"\\udc80":"x"},"w":' + one + "}",
    ):
        path = tmp_path / "x.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(8))
        for line in (
            ("inspect", path),
            ("merge", path, path, "--method", "none", "-o", "m.safetensors"),
            ("card", path),
            ("merge-driver", path, path, path, "-o", "m.safetensors"),
        ):
            assert "half of a surrogate pair" in refused_in_one_message(line).err
    assert rebasin("inspect", path).err.isascii()
    torch.save({"\ud800.weight": torch.ones(2), "w": torch.ones(2)}, "x.pt")
    line = ("merge", "x.pt", "x.pt", "--method", "none", "-o", "m.safetensors")
    assert "no text" in refused_in_one_message(line, codes=(2, 3, 4)).err


# ------------------------------------------------------------------------------------------------ reports


@pytest.mark.sweep
def test_reports_with_anything_anywhere_make_a_card_or_are_refused(tmp_path):
    """A few kinds at every place; `make fuzz` draws others."""
    write_record()
    whole, path, made = report(), tmp_path / "r.json", 0
    line = ("card", "m.safetensors", "--barrier", "r.json", "--force", "-o", "README.md")
    path.write_text(json.dumps(whole))
    assert rebasin(*line).code == 0
    for k, place in enumerate(everywhere(whole)):
        for value in (ODD[k % len(ODD)], LIVE[k % 3]):
            path.write_text(json.dumps(changed(whole, place, value)))
            outcome = rebasin(*line)
            assert outcome.code == 0 or in_one_message(outcome), (place, value, outcome.err)
            assert outcome.code in (0, 2, 3), (place, value, outcome)
            made += outcome.code == 0
            if outcome.code == 0 and value in LIVE:
                assert not re.search(
                    r"<img", re.sub(r"\\.|(?s:(`+).*?\1)", "", (tmp_path / "README.md").read_text())
                )
    assert made
    for text in [*NO_JSON, *WRONG_JSON, "[]", "{}", '{"schema": 1}', '{"schema": "rebasin.report/2"}']:
        path.write_text(text)
        refused_in_one_message(line, codes=(2,))


# ------------------------------------------------------------------------------------- elements and folds


@pytest.mark.sweep
def test_folds_of_any_kind_are_refused_or_fold():
    write_safetensors("b.safetensors", {name: torch.ones(shape) for name, shape in SHAPES.items()})
    line = ("apply", "e.perm.safetensors", "b.safetensors", "-o", "y.safetensors", "--force")

    def apply(folds, spec=SPEC):
        write_elements(folds, spec)
        return rebasin(*line)

    assert apply(json.dumps(FOLDS)).code == 0
    assert open_checkpoint("y.safetensors")["c"].eq(0).all()
    texts = [*NO_JSON, *WRONG_JSON, "[]", "{"]
    kinds = [None, [], {}, "nowhere", 1, -1, True, [1], "w", 2**63]
    for k, place in enumerate(everywhere(FOLDS)):
        texts += [json.dumps(changed(FOLDS, place, kinds[(k + j) % len(kinds)])) for j in (0, 3, 6)]
    refused = 0
    for text in texts:
        outcome = apply(text)
        assert outcome.code in (0, 3), (text[:300], outcome)
        assert outcome.code == 0 or in_one_message(outcome), (text[:300], outcome.err)
        if outcome.code:
            assert "folded away (rebasin.groups.folds) does not fit" in outcome.err, (text[:300], outcome.err)
        refused += outcome.code == 3
    assert refused > len(texts) / 2
    for path, name in ((("norms", 0), "b"), (("norms", 0, "readers", 0), "v"), (("keys", 0), "w")):
        wrong = copy.deepcopy(FOLDS)
        place = wrong
        for key in path:
            place = place[key]
        place |= {key: name for key in ("weight", "bias", "tensor") if key in place}
        assert apply(json.dumps(wrong)).code == 3, (path, name)  # names and kinds are right, sizes are not
    for spec in ["", "null", "[]", "tensors: 1", "tensors: {w: [}", "[" * 5_000, 'tensors: {nowhere: "h"}']:
        assert apply(json.dumps(FOLDS), spec).code == 4, spec


# ------------------------------------------------------------------------------------------------- curves


def test_curves_of_any_kind_are_refused_or_lie_between(two):
    a, b = (open_checkpoint(path) for path in two)
    spec = library.find(a.shapes)
    meta = {
        "rebasin.kind": "curve",
        "rebasin.curve": "bezier",
        "rebasin.inputs": json.dumps([a.digest(), b.digest()]),
        "rebasin.spec_sha256": spec.spec.digest,
    }
    whole = {f"perm/{word}": torch.arange(n) for word, n in spec.words.items()}
    whole |= {f"control.1/{name}": a[name] for name in a}
    first, perm = "control.1/head.bias", next(iter(whole))
    good, order = whole[first], whole[perm]

    def at(tensors, **metadata):
        told = {f"rebasin.{key}": text for key, text in metadata.items()}
        write_safetensors("x.curve.safetensors", tensors, metadata=meta | told, force=True)
        return ("merge", *two, "--curve", "x.curve.safetensors", "--at", "0.5", "--repair", "none",
                "-o", "m.safetensors", "--force")  # fmt: skip

    assert rebasin(*at(whole)).code == 0
    for text in [*NO_JSON, *WRONG_JSON, "[]", "{}", "[1, 2]", '["a"]', '["a", null]', '{"a": 1, "b": 2}']:
        refused_in_one_message(at(whole, inputs=text))
    for kind in ("", "x", "<img>"):
        refused_in_one_message(at(whole, curve=kind))
    nan, inf = (torch.full_like(good, float(what)) for what in ("nan", "inf"))
    for value in (nan, inf, good.long(), good[:3], good[None], torch.tensor(1.0), good.cfloat()):
        refused_in_one_message(at(whole | {first: value}))
    odd = [order.float(), order.int(), order > 0, order[None], order[:0], order - 1, order + 2**60]
    for value in (*odd, torch.tensor(3), torch.zeros_like(order), torch.arange(99)):
        refused_in_one_message(at(whole | {perm: value}))
    numbers = [f"control.{number}/head.bias" for number in ("0", "3", "²", "", "x", "9" * 5_000)]
    for more in (*numbers, "control.1/x", "control.1/", "control/x", "perm/x", "perm/", "x"):
        refused_in_one_message(at(whole | {more: torch.arange(3)}))
