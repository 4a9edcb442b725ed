"""Which families of tensors are averaged as what they stand for, kept, ignored, or refused by name."""

import re

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import rebasin_cli
from rebasin_cli.averages.means import average, slerp_whole
from rebasin_cli.averages.parts import parts_of
from rebasin_cli.averages.together import families_of, products_of
from rebasin_cli.averages.writing_back import WAYS
from rebasin_cli.checkpoints.families import families
from rebasin_cli.checkpoints.forms import FORMS, KINDS
from rebasin_cli.checkpoints.tensors import plan_of
from rebasin_cli.checkpoints.validation import validate
from rebasin_cli.errors import CheckpointError, SpecError

pytestmark = pytest.mark.filterwarnings("ignore")
F8, I8, U8, I32 = torch.float8_e4m3fn, torch.int8, torch.uint8, torch.int32


def some(seed, dtype, *shape):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 30
    return drawn.to(dtype) if dtype.is_floating_point else drawn.abs().to(dtype)


def floats(*names):
    """Matrices that fit as factors: (4, 4) each."""
    return {name: (torch.float32, 4, 4) for name in names}


REFUSED = {
    "adapter": [
        floats("m.q_proj.lora_A.weight", "m.q_proj.lora_B.weight"),
        floats(
            "m.q.lora_A.default.weight",
            "m.q.lora_B.default.weight",
            "m.q.lora_magnitude_vector.default.weight",
        ),
        floats("m.embed.lora_embedding_A.default", "m.embed.lora_embedding_B.default"),
        floats("fc.lora_A", "fc.lora_B"),
        floats("layers.0.attn.q_proj.lora_a.weight", "layers.0.attn.q_proj.lora_b.weight"),
        floats("lora_unet_q.lora_up.weight", "lora_unet_q.lora_down.weight")
        | {"lora_unet_q.alpha": (torch.float32,)},
        floats("unet.to_q.lora.up.weight", "unet.to_q.lora.down.weight"),
        floats("unet.processor.to_q_lora.up.weight", "unet.processor.to_q_lora.down.weight"),
        floats("a.hada_w1_a", "a.hada_w1_b", "a.hada_w2_a", "a.hada_w2_b"),
        floats("a.lokr_w1", "a.lokr_w2_a", "a.lokr_w2_b"),
        floats("a.vera_lambda_b.default", "a.vera_lambda_d.default"),
        floats("a.oft_R.default.weight"),
    ],
    "scaled float8": [
        {"l.weight": (F8, 4, 4), f"l.{scale}": (torch.float32, 1)}
        for scale in ("weight_scale", "weight_scale_inv", "scale_weight")
    ]
    + [{"experts.gate_up_proj": (F8, 2, 4, 4), "experts.gate_up_proj_scale": (torch.float32, 2, 1, 4)}],
    "bitsandbytes": [
        {"l.weight": (I8, 4, 4), "l.SCB": (torch.float32, 4), "l.weight_format": (U8,)},
        {"l.weight": (U8, 8, 1), "l.weight.absmax": (U8, 2), "l.weight.quant_map": (torch.float32, 16)}
        | {"l.weight.quant_state.bitsandbytes__nf4": (U8, 9)},
    ],
    "GPTQ or AWQ": [
        {
            "l.qweight": (I32, 4, 4),
            "l.qzeros": (I32, 1, 4),
            "l.scales": (torch.float16, 1, 4),
            "l.g_idx": (I32, 4),
        },
        {"l.qweight": (I32, 4, 4), "l.qzeros": (I32, 1, 4), "l.scales": (torch.float16, 1, 4)},
    ],
    "compressed-tensors": [
        {
            "l.weight_packed": (I32, 4, 4),
            "l.weight_scale": (torch.bfloat16, 4, 1),
            "l.weight_shape": (torch.int64, 2),
        }
    ],
    "packed": [
        {"l.W_q": (U8, 4, 4), "l.scale": (torch.float32, 4, 1), "l.zero": (torch.float32, 4, 1)},
        {"l.gate_blocks": (U8, 4, 4), "l.gate_scales": (U8, 4)},
        {"l.weight._data": (I8, 4, 4), "l.weight._scale": (torch.float32, 4, 1)},
        {"l.weight": (I8, 4, 4), "l.weight_scale": (torch.float32, 4, 1)},
    ],
    "quantised": [{"l.weight": (I8, 4, 4)}],
    "quantiser": [
        {"l.weight_fake_quant.scale": (torch.float32, 4), "l.weight_fake_quant.zero_point": (I32, 4)}
    ],
    "low-rank factor": [
        {"l.U": (torch.float32, 8, 3), "l.S": (torch.float32, 3), "l.V": (torch.float32, 5, 3)}
    ],
    "old spectral norm": [{"l.weight_orig": (torch.float32, 4, 5), "l.weight_u": (torch.float32, 4)}],
    "parametrization": [
        floats("l.parametrizations.weight.original", "l.parametrizations.weight.0.lora_A"),
        floats("l.parametrizations.weight.original0", "l.parametrizations.weight.original1"),
        floats("l.parametrizations.weight.original", "l.parametrizations.weight.0.base"),
    ],
}
CASES = [(kind, case) for kind, cases in REFUSED.items() for case in cases]


def model(case, seed):
    return {name: some(seed * 100 + k, *planned) for k, (name, planned) in enumerate(case.items())} | {
        "norm.weight": some(seed, torch.float32, 3)
    }


FREE = (  # how people name the factors of their own adapters
    *("lora_A_weight", "0_lora_A", "layers_0_lora_A_default_weight", "x.lora_A_q", "x.lora_q_A.weight"),
    *(
        "x.loraA.weight",
        "x.lora.A",
        "x.LoRA_A",
        "x.lora_matrix_A",
        "x/lora_A/kernel",
        "x.lora_A.adapter.v1.w",
    ),
    *("x.lora_layer.down.weight", "x_lora_down_weight", "x.loraDown", "x.lora_left", "x.lora_in.weight"),
)
OTHER = {"A": "B", "a": "b", "down": "up", "Down": "Up", "left": "right", "in": "out"}


def other(name):
    """The other factor of the same adapter."""
    side = r"(?<![A-Za-z])(A|down|left|in)(?![A-Za-z])|(?<=lora)(A|Down)"
    return re.sub(side, lambda found: OTHER[found[0]], name)


def test_names_made_of_other_parts_or_of_one_word_are_the_same_families():
    for kind, case in CASES:
        for separator in "_/":
            plan = {name.replace(".", separator): (its[0], its[1:]) for name, its in case.items()}
            found = families(plan, loose=lambda name, dtype, shape: dtype in (F8, I8, U8, I32))
            assert [(its.kind.name, {*its.members.values()}) for its in found] == [(kind, {*plan})]
    for name in FREE:
        pair = {name: (torch.float32, (2, 8)), other(name): (torch.float32, (6, 2))}
        assert [{*its.members.values()} for its in families(pair)] == [{*pair}], name
        assert len(pair) == 2 and families(pair)[0].kind.name == "adapter"
    layer = nn.utils.spectral_norm(nn.Linear(6, 8)), nn.utils.weight_norm(nn.Linear(6, 8))
    for kind, states in zip(
        ("spectral norm", "weight norm"), (its.state_dict() for its in layer), strict=True
    ):
        (family,) = families({f"layers_0_{name}": (its.dtype, its.shape) for name, its in states.items()})
        assert family.kind.name == kind and family.stem == "layers_0_weight"
    statistics = {
        f"obs_{of}": (torch.float32, shape) for of, shape in (("mean", (3,)), ("var", (3,)), ("count", ()))
    }
    assert families(statistics)[0].kind.name == "running moments"


def test_names_that_only_look_like_adapters_are_none():
    wide, tall = (torch.float32, (2, 8)), (torch.float32, (6, 2))
    for one, two in (
        *(("flora_A.weight", "flora_B.weight"), ("explora.a", "explora.b"), ("A", "B"), ("net.A", "net.B")),
        *(("lora_A.x", "lora_A.y"), ("lora.in_proj_a", "lora.out_proj_b"), ("soft_R", "left_R")),
        *(
            ("x.down.weight", "x.up.weight"),
            ("lora_1.weight", "lora_2.weight"),
            ("x.lora_bias", "x.lora_about"),
        ),
    ):
        assert families({one: wide, two: tall}) == [], (one, two)
    assert families({"lora.mlp.up.weight": (torch.float32, (8, 2)), "lora.mlp.down.weight": wide}) == []
    assert families({"x.lora.A": (torch.float32, (3,)), "x.lora.B": (torch.float32, (3,))}) == []


@pytest.mark.parametrize("kind, case", CASES, ids=[f"{kind}: {next(iter(case))}" for kind, case in CASES])
def test_what_cannot_be_written_back_is_refused_where_it_differs_and_kept_where_it_is_alike(kind, case):
    one, other = model(case, 1), model(case, 2)
    for refused in (
        lambda: rebasin_cli.average([one, other]),
        lambda: average([one, other]),
        lambda: slerp_whole(one, other, 0.5),
    ):
        with pytest.raises(SpecError, match=f"{kind} tensors differ among the models") as error:
            refused()
        names = error.value.problems[0]
        assert sum(name in names for name in case) >= min(2, len(case)) and error.value.hint
    kept = one | {"norm.weight": other["norm.weight"]}
    for mean in (
        rebasin_cli.average([one, kept]),
        slerp_whole(one, kept, 0.5),
        average([one, kept], [2, -1]),
    ):
        assert all(torch.equal(mean[name].float(), one[name].float()) for name in case)
        assert not torch.equal(mean["norm.weight"], one["norm.weight"])
    ignored = rebasin_cli.average([one, other], ignore=[f"{next(iter(case))[:2]}*"])
    assert all(torch.equal(ignored[name].float(), one[name].float()) for name in case)


def test_what_the_product_is_linear_in_is_averaged_where_nothing_else_differs():
    one = {"l.weight": some(1, F8, 4, 4), "l.weight_scale": torch.tensor([2.0])}
    other = one | {"l.weight": some(2, F8, 4, 4)}
    wanted = (one["l.weight"].double() + other["l.weight"].double()) / 2
    assert torch.equal(average([one, other])["l.weight"].double(), wanted.to(F8).double())
    steps = {"q.scale": torch.tensor([1.0]), "q.zero_point": torch.tensor([0])}
    assert average([steps, steps | {"q.scale": torch.tensor([2.0])}])["q.scale"] == 1.5
    codes = {"l.qweight": some(1, I32, 4, 4), "l.scales": torch.ones(4)}
    with pytest.raises(SpecError, match="GPTQ"):
        average([codes, codes | {"l.scales": torch.zeros(4)}])


def test_half_of_a_family_is_refused_and_so_is_a_family_of_which_a_model_has_another_form():
    one, other = (
        {n: t + k for n, t in nn.utils.weight_norm(nn.Linear(2, 3)).state_dict().items()} for k in (0, 1)
    )
    with pytest.raises(SpecError, match="half of weight would be copied: weight norm") as error:
        parts_of([one, other], ignore=["*_g"])
    assert error.value.problems == ("weight_g  copied", "weight_v  to be averaged")
    assert [*parts_of([one, other], ignore=["weight_*"]).copied] == ["weight_g", "weight_v"]
    plain = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    spectral = nn.utils.spectral_norm(nn.Linear(2, 3)).state_dict()
    for other in (plain, spectral):
        for extra in ("error", "keep"):
            with pytest.raises(SpecError, match="weight is stored in different forms") as error:
                parts_of([one, other], extra=extra)
            assert "in model 2" in error.value.problems[1]
    assert "weight_g" in (parts_of([one, {"bias": torch.ones(3)}], extra="keep").extra or {})


def test_an_adapter_is_told_from_its_base_and_ranks_are_no_heads():
    adapter = floats("base.q.lora_A.weight", "base.q.lora_B.weight")
    with pytest.raises(SpecError, match="an adapter and a model that is none") as error:
        parts_of([model(adapter, 1), {"q.weight": torch.ones(4, 4)}], extra="keep")
    assert error.value.problems[1] == "no adapter in model 2" and "merge_and_unload" in error.value.hint
    longer = {"base.q.lora_A.weight": (torch.float32, 8, 4), "base.q.lora_B.weight": (torch.float32, 4, 8)}
    for heads in (None, "average"):
        with pytest.raises(SpecError, match="adapter tensors") as error:
            parts_of([model(adapter, 1), model(longer, 2)], heads=heads)
        assert "--heads" not in error.value.hint


def test_a_head_in_parts_is_joined_by_none_of_the_ways():
    one, other = (nn.utils.weight_norm(nn.Linear(2, rows)).state_dict() for rows in (3, 4))
    for heads in ("average", "concat", "keep-a"):
        with pytest.raises(SpecError, match="weight norm tensors"):
            parts_of([one, other], heads=heads)


def test_a_weight_that_is_reparametrized_twice_is_one_family():
    twice = nn.utils.spectral_norm(nn.Linear(3, 4))
    prune.random_unstructured(twice, "weight_orig", 0.5)
    nested = parametrizations.spectral_norm(parametrizations.weight_norm(nn.Linear(3, 4)))
    for layer in (twice, nested):
        (family,) = families_of([plan_of(layer.state_dict())])
        assert family.kind.name == "parametrization" and len(family.members) == 4


class Own(nn.Module):
    """Names that families have, too, in a network where each tensor means something by itself."""

    def __init__(self):
        super().__init__()
        for name in (
            "scale",
            "alpha",
            "gamma",
            "log_scale",
            "S",
            "U",
            "V",
            "embed",
            "mean",
            "var",
            "w_g",
            "w_v",
        ):
            setattr(self, name, nn.Parameter(torch.randn(4)))
        self.conv_g, self.conv_v = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3)
        self.weight, self.weight_g, self.weight_v = (nn.Parameter(torch.randn(4, n)) for n in (4, 1, 4))
        self.up, self.down, self.explorer = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mask", torch.rand(1, 1, 4, 4))
        self.register_buffer("attention_mask", torch.rand(4, 4))
        self.register_buffer("zero_point", torch.rand(4))


ORDINARY = {
    "own": Own,
    "transformer": lambda: nn.Transformer(8, 2, 1, 1, 8),
    "recurrent": lambda: nn.Sequential(nn.LSTM(3, 4, 2, bidirectional=True), nn.GRU(3, 4)),
    "norms": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.RMSNorm(4)),
    "others": lambda: nn.Sequential(nn.Embedding(5, 4), nn.Bilinear(2, 3, 4), nn.ConvTranspose2d(2, 2, 3)),
    "all in float8": lambda: Own().to(torch.float8_e4m3fn),
    "symmetric": lambda: nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", nn.Tanh()),
}


@pytest.mark.parametrize("make", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_networks_are_averaged_tensor_by_tensor(make):
    models = [make().state_dict() for _ in range(2)]
    assert products_of(models).families == () and not products_of(models).fixed
    for name, tensor in average(models).items():
        wanted = (models[0][name].double() + models[1][name].double()) / 2
        torch.testing.assert_close(tensor.double(), wanted.to(tensor.dtype).double())


def test_a_file_of_codes_says_what_they_are():
    with pytest.raises(CheckpointError) as error:
        validate(model(REFUSED["GPTQ or AWQ"][0], 1))
    assert "They are GPTQ or AWQ tensors" in error.value.hint
    with pytest.raises(CheckpointError) as error:
        validate({"l.weight_g": torch.ones(2, 1) / 0, "l.weight_v": torch.ones(2, 2)})
    assert "weight norm" not in error.value.hint


@pytest.mark.sweep
def test_forty_thousand_names_take_a_second():
    import time

    plan = {
        f"model.layers.{k}.mlp.experts.{k}.gate_up_proj.weight": (torch.float32, (4, 4))
        for k in range(40_000)
    }
    plan |= {"a_" * 5000 + "b": (torch.float32, (1,)), "parametrizations." * 500 + "w": (torch.float32, (1,))}
    plan |= {f"{k}.lora_A.lora_B." * 30: (torch.float32, (1,)) for k in range(1000)}
    began = time.perf_counter()
    families_of([plan])
    assert time.perf_counter() - began < 5


def test_every_form_is_of_a_kind_and_every_exact_kind_has_its_arithmetic():
    assert {form.kind for form in FORMS} < KINDS.keys()
    assert {name for name, kind in KINDS.items() if kind.exact} == WAYS.keys()
