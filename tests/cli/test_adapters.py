"""rebasin average and apply on adapters of low rank: what they add is averaged, and moved."""

import json
import math
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rebasin_cli.checkpoints.peft import CONFIG, WEIGHTS
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.nets.mlp import MLP

from .conftest import contents, tensors

BASE = "base_model.model."
SHAPES = {  # of the factors' product: outputs, inputs, kernel
    "fc": (6, 5),
    "deep.fc": (6, 6),
    "conv": (4, 3, 3, 3),
    "embed": (5, 9),
}
CONFIGURATION = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 8,
    "target_modules": ["fc", "conv", "embed"],
    "base_model_name_or_path": "some/base",
    "bias": "none",
}


def ends(name):
    return ("lora_embedding_A", "lora_embedding_B") if name == "embed" else ("lora_A.weight", "lora_B.weight")


def adapter(
    folder, seed=0, modules=tuple(SHAPES), rank=2, ranks=None, extra=None, dtype=torch.float32, **config
):
    """An adapter folder; the rank of a module is that of `ranks`, or `rank`."""
    rng, state = torch.Generator().manual_seed(seed), dict(extra or {})
    for name in modules:
        m, n, *kernel = SHAPES[name]
        r = (ranks or {}).get(name, rank)
        down, up = (f"{BASE}{name}.{end}" for end in ends(name))
        state[down] = torch.randn(r, n, *kernel, generator=rng).to(dtype)
        state[up] = torch.randn(m, r, *[1] * len(kernel), generator=rng).to(dtype)
    Path(folder).mkdir(exist_ok=True)
    write_safetensors(Path(folder) / WEIGHTS, state, force=True)
    (Path(folder) / CONFIG).write_text(json.dumps(CONFIGURATION | {"r": rank} | config))
    return Path(folder)


def added(folder):
    """What an adapter adds to each module, as peft computes it."""
    config, state = json.loads((Path(folder) / CONFIG).read_text()), load_file(Path(folder) / WEIGHTS)
    found = {}
    for name, shape in SHAPES.items():
        down, up = (f"{BASE}{name}.{end}" for end in ends(name))
        if down not in state:
            continue
        r = len(state[down])
        alpha = next(
            (a for key, a in config.get("alpha_pattern", {}).items() if pattern_is(key, name)),
            config["lora_alpha"],
        )
        scale = alpha / (math.sqrt(r) if config.get("use_rslora") else r)
        found[name] = (state[up].double().flatten(1) @ state[down].double().flatten(1) * scale).reshape(shape)
    return found


def pattern_is(key, name):
    return re.match(rf"(.*\.)?({key})$", name)


def test_what_adapters_add_is_averaged_whatever_their_scales_ranks_and_modules(done):
    folders = [
        adapter("a", 0, use_rslora=True),
        adapter("b", 1, rank=3, lora_alpha=5, alpha_pattern={"^fc": 7.5, "f[c]": 3, "conv": 2}),
        adapter("c", 2, ("conv", "fc"), rank=1, ranks={"conv": 4}, rank_pattern={"conv": 4}),
    ]
    weights = [0.5, 1.5, -3]
    outcome = done("average", *folders, "--weights", "0.5,1.5,-3", "-o", "out/", "--json").json()
    wanted, found = [added(folder) for folder in folders], added("out")
    for name in SHAPES:
        each = [w * its.get(name, torch.zeros(SHAPES[name])) for w, its in zip(weights, wanted, strict=True)]
        torch.testing.assert_close(found[name], sum(each), rtol=1e-5, atol=1e-5)
    config = json.loads(Path("out", CONFIG).read_text())
    assert config["lora_alpha"] == config["r"] and not config["use_rslora"]
    assert config["rank_pattern"] == config["alpha_pattern"]
    assert config["target_modules"] == ["conv", "embed", "fc"]
    assert config["base_model_name_or_path"] == "some/base"
    ranks = {}
    for name in SHAPES:  # as peft finds them: "fc" is no pattern for "deep.fc" alone
        keys = [key for key in config["rank_pattern"] if pattern_is(key, name)]
        assert len(keys) <= 1
        ranks[name] = config["rank_pattern"][keys[0]] if keys else config["r"]
    assert ranks == outcome["ranks"] == {"fc": 5, "deep.fc": 5, "conv": 4, "embed": 5}
    assert outcome["summed_rank"] == 9 and outcome["relative_error"] < 1e-6
    assert done("merge", *folders, "--method", "none", "--weights", "0.5,1.5,-3", "-o", "again/")
    assert contents(Path("again")) == contents(Path("out"))


def test_the_told_error_is_that_of_the_file(done):
    folders = [adapter(name, seed, rank=3) for seed, name in enumerate("ab")]
    for more in (["--rank", "2"], ["--rank", "0.9"], ["--rank", "4", "--out-dtype", "bfloat16"]):
        told = done("average", *folders, *more, "-o", "out/", "--force", "--json").json()
        wanted, found = [added(folder) for folder in folders], added("out")
        sums = {name: sum(its[name] for its in wanted) / 2 for name in SHAPES}
        errors = {name: (found[name] - sums[name]).norm().item() for name in SHAPES}
        size = math.hypot(*(its.norm().item() for its in sums.values()))
        assert abs(told["relative_error"] - math.hypot(*errors.values()) / size) < 1e-9
        relative = {name: errors[name] / sums[name].norm().item() for name in SHAPES}
        assert [*told["worst"]] == sorted(relative, key=relative.get)[:-4:-1]
        assert all(abs(its - relative[name]) < 1e-9 for name, its in told["worst"].items())
    assert {its.dtype for its in tensors("out").values()} == {torch.bfloat16}


def test_the_base_takes_the_sum_and_is_rounded_once(done, refused):
    folders = [adapter("a", 0), adapter("b", 1, ("fc", "embed"), use_rslora=True)]
    rng = torch.Generator().manual_seed(5)
    base = {
        f"{name}.weight": torch.randn(*(shape[::-1] if name == "embed" else shape), generator=rng)
        for name, shape in SHAPES.items()
    } | {"norm.weight": torch.ones(5)}
    deltas = [added(folder) for folder in folders]
    for turned in (False, True):  # as layers with fan_in_fan_out lie
        if turned:
            base = {n: t.mT.contiguous() if n.endswith("fc.weight") else t for n, t in base.items()}
            folders = [
                adapter("a", 0, fan_in_fan_out=True),
                adapter("b", 1, ("fc", "embed"), use_rslora=True, fan_in_fan_out=True),
            ]
        write_safetensors("base.safetensors", base, force=True)
        arguments = (*folders, "--weights", "2,-1", "--base", "base.safetensors", "--force")
        done("average", *arguments, "-o", "full.safetensors")
        found = tensors("full.safetensors")
        for name in SHAPES:
            delta = sum(w * its.get(name, 0) for w, its in zip((2, -1), deltas, strict=True))
            delta = delta.mT if name == "embed" or (turned and name.endswith("fc")) else delta
            assert torch.equal(found[f"{name}.weight"], (base[f"{name}.weight"].double() + delta).float())
        assert torch.equal(found["norm.weight"], base["norm.weight"])
    wrapped = {f"model.{name}": tensor for name, tensor in base.items()}
    write_safetensors("base.safetensors", wrapped, force=True)  # a prefix of all is none
    done("average", *arguments, "-o", "wrapped.safetensors")
    assert torch.equal(tensors("wrapped.safetensors")["model.fc.weight"], found["fc.weight"])
    write_safetensors("base.safetensors", {"fc.weight": torch.zeros(7, 5)}, force=True)
    refused(4, "average", *arguments, "-o", "no.safetensors", says=("adapts 6×5, the base has 7×5", "conv"))
    write_safetensors("base.safetensors", base | {"deep.fc.weight": torch.zeros(6, 6)}, force=True)
    adapter("b", 1, ("fc", "embed"))
    refused(4, "average", *arguments, "-o", "no.safetensors", says="fan_in_fan_out does not say how it lies")
    refused(2, "average", *arguments, "--rank", "2", "-o", "no.safetensors", says="--rank")
    refused(2, "average", "a", "--base", "b", "-o", "no.safetensors", says="is an adapter itself")


@pytest.mark.parametrize("told", ["by its file", "by its configuration"])
def test_a_tensor_that_the_base_reads_in_two_places_takes_no_sum(told, refused):
    adapter("a", modules=("embed",))
    base, folder = {"embed.weight": torch.randn(9, 5), "norm.weight": torch.ones(5)}, Path("base")
    folder.mkdir()
    if told == "by its file":
        torch.save(base | {"head.weight": base["embed.weight"]}, folder / "model.pt")
        path = folder / "model.pt"
    else:
        path = folder / "model.safetensors"
        write_safetensors(path, base)
        (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    says = "embed.weight is used twice in the base, and adapted in one of its places"
    refused(4, "average", "a", "a", "--base", path, "-o", "no.safetensors", says=says)


def sd_scripts(path, seed, rank, alpha, metadata=None, **more):
    rng, state = torch.Generator().manual_seed(seed), dict(more)
    for name, (m, n, *kernel) in {"lora_unet_down_fc": (6, 5), "lora_unet_conv": (4, 3, 3, 3)}.items():
        state[f"{name}.lora_down.weight"] = torch.randn(rank, n, *kernel, generator=rng)
        state[f"{name}.lora_up.weight"] = torch.randn(m, rank, *[1] * len(kernel), generator=rng)
        state |= {} if alpha is None else {f"{name}.alpha": torch.tensor(float(alpha))}
    write_safetensors(path, state, metadata=metadata, force=True)
    return path


def sd_added(path, name):
    state = tensors(path)
    down, up = (state[f"{name}.lora_{which}.weight"] for which in ("down", "up"))
    scale = state[f"{name}.alpha"].item() / len(down) if f"{name}.alpha" in state else 1
    return (up.flatten(1) @ down.flatten(1) * scale).reshape(len(up), *down.shape[1:])


def test_files_of_sd_scripts_are_averaged_the_same_way(done, refused):
    paths = [sd_scripts("a.safetensors", 0, 2, 1), sd_scripts("b.safetensors", 1, 3, None)]
    done("average", *paths, "--weights", "1,2", "-o", "out.safetensors")
    names = ("lora_unet_down_fc", "lora_unet_conv")
    sums = {name: sd_added(paths[0], name) + 2 * sd_added(paths[1], name) for name in names}
    for name in names:
        torch.testing.assert_close(sd_added("out.safetensors", name), sums[name])
    base = {"down.fc.weight": torch.randn(6, 5), "conv.weight": torch.randn(4, 3, 3, 3)}
    write_safetensors("base.safetensors", base)
    done("average", *paths, "--weights", "1,2", "--base", "base.safetensors", "-o", "full.safetensors")
    torch.testing.assert_close(
        tensors("full.safetensors")["down.fc.weight"], base["down.fc.weight"] + sums["lora_unet_down_fc"]
    )
    dotted = {name.replace("unet_conv", "unet.conv"): its for name, its in tensors(paths[0]).items()}
    write_safetensors("dotted.safetensors", dotted)
    done("average", "dotted.safetensors", "dotted.safetensors", "-o", "two.safetensors")
    torch.testing.assert_close(sd_added("two.safetensors", "lora_unet.conv"), sd_added(paths[0], names[1]))
    assert tensors("two.safetensors").keys() == dotted.keys()
    mid = {"lora_unet_conv.lora_mid.weight": torch.ones(2, 2, 3, 3)}
    sd_scripts("b.safetensors", 1, 3, 2, **mid)
    refused(4, "average", *paths, "-o", "no.safetensors", says="2×2×3×3 does not stand between them")
    refused(
        4, "average", "a.safetensors", adapter("p"), "-o", "no/", says="is peft, a.safetensors is sd-scripts"
    )


@pytest.mark.parametrize("key", ["ss_base_model_version", "ss_sd_model_hash", "ss_new_sd_model_hash"])
def test_files_of_sd_scripts_that_name_other_bases_are_of_other_bases(done, refused, key):
    paths = [sd_scripts(f"{name}.safetensors", k, 2, 1, {key: name}) for k, name in enumerate("ab")]
    refused(
        4, "average", *paths, "-o", "no.safetensors", says=f"{key}  is a in a.safetensors, b in b.safetens"
    )
    done("average", *paths, "--skip-checks", "-o", "out.safetensors")
    unnamed = sd_scripts("c.safetensors", 2, 2, 1)  # says nothing: no difference
    done("average", paths[0], unnamed, "-o", "two.safetensors")


def test_what_stands_beside_factors_of_sd_scripts_is_named(refused):
    a, more = sd_scripts("a.safetensors", 0, 2, 1), {"lora_unet_conv.scalar": torch.ones(())}
    b = sd_scripts("b.safetensors", 1, 2, 1, **more)
    says = "b.safetensors  has tensors beside its factors: lora_unet_conv.scalar"
    refused(4, "average", a, b, "-o", "no.safetensors", says=says)
    torch.save(tensors(a), "c.pt")
    refused(
        4, "average", a, "c.pt", "-o", "no.safetensors", says="c.pt  has factors, and is no .safetensors file"
    )


def test_an_alpha_of_nothing_is_refused_since_programs_differ_in_what_it_means(refused):
    paths = [sd_scripts(f"{name}.safetensors", k, 2, k) for k, name in enumerate("ab")]
    refused(
        4, "average", *paths, "-o", "no.safetensors", says="alpha  is 0: for sd-scripts that means the rank"
    )


def test_a_factor_between_two_of_a_convolution_is_multiplied_into_one_and_stays_where_units_move(done):
    """LyCORIS writes kernels so, with use_tucker: down (r, c, 1, 1), mid (r, r, k, k), up (m, r, 1, 1)."""
    rng = torch.Generator().manual_seed(0)
    names = {"up": (6, 2, 1, 1), "mid": (2, 2, 3, 3), "down": (2, 6, 1, 1)}
    state = {f"lora_unet_conv.lora_{n}.weight": torch.randn(s, generator=rng) for n, s in names.items()}
    write_safetensors("a.safetensors", state | {"lora_unet_conv.alpha": torch.tensor(3.0)})
    up, mid, down = (tensor.double().squeeze() for tensor in state.values())
    added = 1.5 * torch.einsum("or,rskl,si->oikl", up, mid, down)
    done("average", "a.safetensors", "--weights", "2", "-o", "out.safetensors")
    torch.testing.assert_close(sd_added("out.safetensors", "lora_unet_conv"), 2 * added.float())
    assert not any("mid" in name for name in tensors("out.safetensors"))
    write_safetensors("base.safetensors", {"conv.weight": torch.randn(6, 6, 3, 3, generator=rng)})
    Path("spec.yaml").write_text('schema: 1\ntensors:\n  conv.weight: "h h . ."\n')
    base, spec = tensors("base.safetensors")["conv.weight"], ("--spec", "spec.yaml")
    write_safetensors("other.safetensors", {"conv.weight": base.roll((1, 1), (0, 1))})
    done("align", "other.safetensors", "base.safetensors", *spec, "-o", "moved.safetensors")
    done(
        *("apply", "moved.perm.safetensors", "a.safetensors", "--base", "base.safetensors", *spec),
        *("-o", "a_moved.safetensors"),
    )
    for adapter, model, full in (("a", "base", "one"), ("a_moved", "moved", "two")):
        done(
            *("average", f"{adapter}.safetensors", "--weights", "1", "--base", f"{model}.safetensors"),
            *("-o", f"{full}.safetensors"),
        )
    done("apply", "moved.perm.safetensors", "one.safetensors", *spec, "-o", "one_moved.safetensors")
    one, two = (tensors(f"{name}.safetensors")["conv.weight"] for name in ("one_moved", "two"))
    torch.testing.assert_close(one, two)
    assert not torch.equal(tensors("moved.safetensors")["conv.weight"], base)


REFUSED = {  # what is wrong: settings, tensors beside, and what is said of it
    "dora": ({"use_dora": True}, {}, "DoRA"),
    "kasa": ({"kasa_config": {"beta": 1}}, {}, "KaSA"),
    "lora_bias": ({"lora_bias": True}, {f"{BASE}fc.lora_B.bias": torch.ones(6)}, "biases beside"),
    "bias": ({"bias": "all"}, {}, "bias is 'all', expected none"),
    "other kind": ({"peft_type": "LOHA"}, {}, "peft_type is 'LOHA', expected LORA"),
    "begun by the base": ({"init_lora_weights": "PiSSA_niter_4"}, {}, "loading it changes the base"),
    "what is not known": ({"use_new_thing": 3}, {}, "'use_new_thing' is 3, which is not known"),
    "another base": ({"base_model_name_or_path": "other"}, {}, "some/base in a, other in b"),
    "a NaN": ({"lora_alpha": math.nan}, {}, "not valid JSON"),
    "infinity": ({"lora_alpha": 10**400}, {}, "expected a finite number"),
    "true": ({"lora_alpha": True}, {}, "lora_alpha is True, expected a finite number"),
    "a huge rank": ({"r": 10**9}, {}, "the rank 2, adapter_config.json says 1000000000"),
    "a text": ({"r": "2"}, {}, "r is '2', expected a whole number"),
    "patterns as a list": ({"rank_pattern": [1]}, {}, "rank_pattern is [1], expected patterns"),
    "a slow pattern": ({"alpha_pattern": {"(a+)+(b+)+": 1}}, {}, "too intricate"),
    "a slow pattern of one quantifier": ({"alpha_pattern": {"(a|aa)+": 1}}, {}, "too intricate"),
    "a broken pattern": ({"alpha_pattern": {"(": 1}}, {}, "too intricate"),
    "half a pattern": ({"alpha_pattern": {"fc": None}}, {}, "says None of 'fc'"),
    "targets": ({"target_modules": [3]}, {}, "target_modules is [3]"),
    "truths as layers": ({"layers_to_transform": [True]}, {}, "is [True], expected whole numbers"),
    "three layers": ({"layer_replication": [[0, 1, 2]]}, {}, "[[0, 1, 2]], expected pairs of whole numbers"),
    "a large share": ({"lora_dropout": 1.5}, {}, "lora_dropout is 1.5, expected a number from 0 to 1"),
    "begun in a new way": ({"init_lora_weights": "sunrise"}, {}, "init_lora_weights is 'sunrise', which is"),
    "layers several times": ({"layer_replication": [[0, 1], [0, 1]]}, {}, "None in a, [[0, 1], [0, 1]] in b"),
    "split over processes": ({"megatron_config": {"x": 1}}, {}, "Megatron"),
    "parameters": ({"target_parameters": ["w"]}, {}, "parameters that are no module's weight"),
    "rows": ({"trainable_token_indices": {"embed": [1]}}, {}, "rows of an embedding beside"),
    "activated": ({"alora_invocation_tokens": [1, 2]}, {}, "behind some tokens alone"),
    "pooled": ({"use_qalora": True}, {}, "QA-LoRA"),
    "half a module": ({}, {f"{BASE}x.lora_A.weight": torch.ones(2, 3)}, "has no lora_B.weight"),
    "no module's": ({}, {f"{BASE}x.gate": torch.ones(2)}, "x.gate  is no factor of a module"),
    "shapes": (
        {},
        {f"{BASE}x.lora_A.weight": torch.ones(2, 3), f"{BASE}x.lora_B.weight": torch.ones(3, 4)},
        "the ranks 4 and 2 do not meet",
    ),
    "a kernel above": (
        {},
        {f"{BASE}x.lora_A.weight": torch.ones(2, 3, 3), f"{BASE}x.lora_B.weight": torch.ones(4, 2, 3)},
        "the upper one should have a kernel of 1",
    ),
    "saved whole": (
        {"modules_to_save": ["head"]},
        {f"{BASE}head.weight": torch.ones(2)},
        "saved whole in one of",
    ),
}


def test_magnitudes_beside_the_factors_of_sd_scripts_are_told_as_what_they_are(refused):
    for name in "ab":
        state = {
            "lora_unet_q.lora_up.weight": torch.randn(8, 2),
            "lora_unet_q.lora_down.weight": torch.randn(2, 8),
        }
        save_file(state | {"lora_unet_q.dora_scale": torch.rand(8, 1) + 1}, f"{name}.safetensors")
    found = refused(4, "average", "a.safetensors", "b.safetensors", says="lora_unet_q.dora_scale  is DoRA: ")
    assert "saved whole" not in found.err and "no factor" not in found.err


def test_patterns_that_take_long_together_are_refused(refused):
    state = {f"{BASE}{'a.' * 220}{k}.{end}": torch.ones(2, 2) for k in range(50) for end in ends("fc")}
    slow = {f"[a.0-9]*b{k}": 1 for k in range(200)}
    folder = adapter("a", modules=(), extra=state, alpha_pattern=slow)
    refused(4, "average", folder, folder, "-o", "out/", says="too many patterns")


@pytest.mark.parametrize("factor", [1e130, 3e153])
def test_a_sum_of_huge_numbers_has_an_error_that_is_a_number_or_is_refused(factor, run):
    folder = adapter("a", modules=("fc",), dtype=torch.float64)
    state = {name: tensor.clone() * factor for name, tensor in load_file(folder / WEIGHTS).items()}
    write_safetensors(folder / WEIGHTS, state, force=True)
    outcome = run("average", folder, folder, "-o", "out/", "--json")
    if outcome.code:
        assert factor > 1e150 and "beyond the range of float64" in outcome.err and not Path("out").exists()
    else:
        assert factor < 1e150 and outcome.json()["relative_error"] < 1e-12


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_more_than_factors_is_refused(what, refused):
    config, extra, says = REFUSED[what]
    adapter("a", 0)
    adapter("b", 1, extra=extra, **config)
    refused(3 if what == "a NaN" else 4, "average", "a", "b", "-o", "out/", says=(says, "b"))


ODD = {  # a value of every kind that is none of a key's own
    "use_rslora fan_in_fan_out inference_mode ensure_weight_tying": 1,
    "base_model_name_or_path revision task_type peft_version megatron_core": 2,
    "target_modules exclude_modules layers_pattern modules_to_save": [3],
    "layers_to_transform": "4",
    "layer_replication": [[0, 1, 2]],
    "lora_dropout": 1.5,
    "qalora_group_size init_lora_weights": [],
    "auto_mapping corda_config eva_config lora_ga_config loftq_config runtime_config velora_config": "5",
    "r lora_alpha rank_pattern alpha_pattern": "6",
}


def test_values_of_other_kinds_are_told_in_one_message_and_null_is_left_out(refused, done):
    odd = {key: value for keys, value in ODD.items() for key in keys.split()}
    adapter("a", 0)
    adapter("b", 1, **odd)
    refused(4, "average", "a", "b", "-o", "out/", says=[f": {key} is " for key in odd])
    null = dict.fromkeys(odd.keys() - {"r", "lora_alpha"})
    adapter("b", 1, **null)
    done("average", "a", "b", "-o", "out/")


def test_factors_of_an_adapter_that_repeats_layers_are_not_added_to_its_base(refused):
    folder = adapter("a", modules=("fc",), layer_replication=[[0, 1], [0, 1]])
    write_safetensors("base.safetensors", {"fc.weight": torch.zeros(6, 5)})
    arguments = ("average", folder, "--weights", "1", "--base", "base.safetensors", "-o", "full.safetensors")
    refused(4, *arguments, says="layers of its base several times")


def test_equal_shapes_or_values_of_another_kind_are_others(refused):
    linear = {f"{BASE}embed.lora_A.weight": torch.ones(2, 9), f"{BASE}embed.lora_B.weight": torch.ones(5, 2)}
    adapter("a", modules=("fc", "embed"))
    adapter("b", modules=("fc",), extra=linear)
    refused(4, "average", "a", "b", "-o", "out/", says="embed  adapts 5×9 in a, 5×9 in b")
    for name, dtype in (("a", torch.float16), ("b", torch.bfloat16)):  # the same bits
        adapter(name, extra={f"{BASE}head.weight": torch.zeros(2, dtype=dtype)}, modules_to_save=["head"])
    refused(4, "average", "a", "b", "-o", "out/", says="head.weight  is saved whole, with other values in b")


def test_factors_of_peft_without_their_configuration_are_no_model(refused):
    adapter("a", 0)
    adapter("b", 1)
    Path("b", CONFIG).unlink()
    refused(
        4, "average", "a", "b", "-o", "out/", says=f"b  has factors and no {CONFIG}, which says their scale"
    )
    assert not Path("out").exists()


def test_all_reasons_are_told_at_once_and_nothing_is_written_over_an_input(refused, done):
    adapter("a", 0)
    adapter("b", 1, use_dora=True, bias="all", base_model_name_or_path="../../etc/passwd")
    write_safetensors("model.safetensors", {"w": torch.ones(2)})
    says = ("DoRA", "bias is 'all'", "etc/passwd in b", "model.safetensors  is a model, no adapter")
    refused(4, "average", "a", "b", "model.safetensors", "-o", "out/", says=says)
    adapter(
        "b",
        1,
        base_model_name_or_path="other",
        extra={f"{BASE}head.weight": torch.ones(2)},
        modules_to_save=["head"],
    )
    adapter("a", 0, extra={f"{BASE}head.weight": torch.ones(2)}, modules_to_save=["head"])
    done("average", "a", "b", "--skip-checks", "-o", "out/")
    assert torch.equal(load_file(f"out/{WEIGHTS}")[f"{BASE}head.weight"], torch.ones(2))
    for out in ("a/", "a", "a/new/"):
        refused(2, "average", "a", "b", "--skip-checks", "--force", "-o", out, says="")
    refused(2, "average", "a", "b", "--skip-checks", "-o", "out/", says="exists")
    refused(2, "average", "a", "b", says="an adapter is a folder")
    refused(2, "average", "a", "b", "--weights", "1", "-o", "no/", says="1 weights for 2 models")
    refused(2, "average", "a", "b", "--heads", "keep-a", "-o", "no/", says="--heads: not for adapters")
    refused(2, "merge", "a", "b", "--method", "wm", "-o", "no/", says="no units of their own")
    refused(
        2, "average", "model.safetensors", "model.safetensors", "--rank", "2", says="--rank is for adapters"
    )
    adapter("b", 1, extra={f"{BASE}head.weight": torch.full((2,), math.nan)}, modules_to_save=["head"])
    adapter("a", 1, extra={f"{BASE}head.weight": torch.full((2,), math.nan)}, modules_to_save=["head"])
    refused(3, "average", "a", "b", "-o", "no/", says="NaN")


def test_a_permutation_moves_the_factors_of_an_adapter(done, refused):
    """The permuted base with the moved factors is the permuted sum, bit by bit in what was moved."""
    torch.manual_seed(0)
    models = [MLP([6, 7, 7, 3]).state_dict() for _ in range(2)]
    for name, state in zip("ab", models, strict=True):
        write_safetensors(f"{name}.safetensors", state)
    weights = [name for name, its in models[1].items() if its.ndim == 2]
    rng, state = torch.Generator().manual_seed(1), {}
    for name in weights:
        m, n = models[1][name].shape
        module = name.removesuffix(".weight")
        state[f"{BASE}{module}.lora_A.weight"] = torch.randn(2, n, generator=rng)
        state[f"{BASE}{module}.lora_B.weight"] = torch.randn(m, 2, generator=rng)
    Path("lora").mkdir()
    write_safetensors(f"lora/{WEIGHTS}", state)
    Path("lora", CONFIG).write_text(json.dumps(CONFIGURATION))
    done("align", "a.safetensors", "b.safetensors", "-o", "aligned.safetensors")
    perm = "aligned.perm.safetensors"
    done("apply", perm, "lora", "--base", "b.safetensors", "-o", "moved/")
    for base, its, out in (("b", "lora", "sum"), ("aligned", "moved", "moved_sum")):
        done("average", its, "--weights", "1", "--base", f"{base}.safetensors", "-o", f"{out}.safetensors")
    done("apply", perm, "sum.safetensors", "-o", "wanted.safetensors")
    wanted, found = tensors("wanted.safetensors"), tensors("moved_sum.safetensors")
    assert all(torch.equal(found[name], its) for name, its in wanted.items())
    assert not torch.equal(found[weights[0]], tensors("sum.safetensors")[weights[0]])
    assert json.loads(Path("moved", CONFIG).read_text())["base_model_name_or_path"] is None
    done("apply", perm, "moved", "--invert", "--base", "b.safetensors", "-o", "back/")
    back = load_file(f"back/{WEIGHTS}")
    assert all(torch.equal(back[name], its) for name, its in state.items())
    refused(2, "apply", perm, "lora", "-o", "no/", says="--base MODEL")
    refused(2, "apply", perm, "b.safetensors", "--base", "b.safetensors", says="--base is for adapters")
    refused(2, "apply", perm, "lora", "--base", "b.safetensors", "--force", "-o", "lora/", says="")


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_configuration_that_is_no_regular_file_is_named(kind, refused):
    for name in ("A", "B"):
        adapter(name)
    Path("A", CONFIG).unlink()
    if kind == "fifo":
        os.mkfifo(Path("A", CONFIG))
    else:
        Path("A", CONFIG).symlink_to("/dev/zero")
    says = f"A/{CONFIG} cannot be read: it is no regular file"
    refused(3, "average", "A", "B", "-o", "out/", says=says)


@pytest.mark.parametrize("words", ["align A A -o b.safetensors", "canon A -o b.safetensors --spec chain"])
def test_factors_are_not_read_as_layers(words, refused):
    adapter("A", modules=("fc",))
    refused(4, *words.split(), says="A is an adapter, no model")
