"""What people bring, rebuilt small from public threads on averaging, merging and aligning checkpoints.

Each situation makes its files in the working folder, names one command, and says what must come out: the exit
code, words of the message, what the written file holds. `situations.md` lists them, in `row`s.
"""

import io
import json
import pickle
import tarfile
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

MERGE = "merge a.pt b.pt --method none -o out.safetensors"
WRITTEN = Path("out.safetensors")


@dataclass(frozen=True)
class Situation:
    """`make` writes the files; the `command` ends with `code`, its message has `says`; `holds` is true."""

    what: str
    make: Callable[[], object]
    command: str = MERGE
    code: int = 0
    says: tuple[str, ...] = ()
    holds: Callable[[], bool] | None = None

    @property
    def row(self):
        """Its line in the page: situation, what it adds to the page's command, what comes out."""
        words = ", ".join(f"`{one}`" for one in self.says)
        out = "written" if not self.code else f"refused, exit {self.code}"
        start, _, after = self.command.partition(" -o ")
        assert start.startswith("merge ") and start.endswith(" --method none"), "the page has one command"
        more = " ".join(after.split()[1:])
        return f"| {self.what} | {f'`{more}`' if more else ''} | {out}{', told: ' if words else ''}{words} |"


def _r(*shape):
    return torch.randn(*shape)


def _both(make, names=("a.pt", "b.pt"), save=torch.save):
    for name in names:
        save(make(), name)


def _net(**more):
    return {"fc.weight": _r(4, 3), "fc.bias": _r(4)} | more


def _mean(key, *path, a="a.pt", b="b.pt"):
    """Whether `key` of the output is the mean of what lies at `path` in both files."""

    def there(file):
        value = torch.load(file, weights_only=False)
        for step in path:
            value = value[step]
        return value

    def holds():
        return torch.allclose(load_file(WRITTEN)[key], (there(a).double() + there(b).double()).div(2).float())

    return holds


def _names(*expected):
    return lambda: set(load_file(WRITTEN)) == set(expected)


def _and(*checks):
    return lambda: all(check() for check in checks)


def _adam(*tensors):
    states = {
        k: {"step": 3, "exp_avg": torch.zeros_like(t), "exp_avg_sq": _r(*t.shape)}
        for k, t in enumerate(tensors)
    }
    return {"state": states, "param_groups": [{"lr": 0.1, "params": list(states)}]}


def _bar():
    weight = _r(4, 3, 3, 3)
    u, _, v = torch.linalg.svd(weight.flatten(1), full_matrices=False)
    return {
        f"conv.module.weight_{n}": t.clone()
        for n, t in zip(("bar", "u", "v"), (weight, u[:, 0], v[0]), strict=True)
    }


def _norm(tensors, name):
    """The largest singular value of the weight that the layer computes with."""
    w = tensors[f"{name}_bar"].flatten(1).double()
    sigma = tensors[f"{name}_u"].double() @ w @ tensors[f"{name}_v"].double()
    return torch.linalg.matrix_norm(w / sigma, 2).item()


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.bn = nn.BatchNorm1d(4)


def _added(file):
    """What an adapter of one module adds."""
    its = load_file(file)
    return its["unet.q.lora_B.weight"] @ its["unet.q.lora_A.weight"]


def _in_two_formats(folder, net):
    files = {"model.safetensors": "model.enc.", "pytorch_model.bin": "bert."}
    _folder(folder, {file: {prefix + k: v for k, v in net.items()} for file, prefix in files.items()})


def _yolo():
    torch.save({"model": Plain(), "ema": Plain(), "updates": 7, "optimizer": None, "epoch": -1}, "a.pt")
    torch.save({"model": Plain(), "ema": Plain(), "updates": 9, "optimizer": None, "epoch": -1}, "b.pt")


def _folder(name, files):
    for file, content in files.items():
        path = Path(name, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict) and all(isinstance(v, torch.Tensor) for v in content.values()):
            save_file(content, path) if file.endswith(".safetensors") else torch.save(content, path)
        else:
            path.write_text(json.dumps(content))


def _tar(name):
    with tarfile.open(name, "w") as archive:
        for file in ("./model_config.yaml", "./model_weights.ckpt"):
            archive.addfile(tarfile.TarInfo(file), io.BytesIO(b""))


def _zip(name, files):
    with zipfile.ZipFile(name, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)


def _bytes(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


SITUATIONS = {
    "a detector saves its whole network and its average": Situation(
        "`{'model': net, 'ema': net, …}`, networks pickled whole, as object detectors save them",
        _yolo,
        command=MERGE + " --repair none",
        holds=lambda: {"fc.weight", "bn.running_var"} <= set(load_file(WRITTEN)),
    ),
    "a generator, its critic and its average": Situation(
        "`{'g', 'd', 'g_ema', 'g_optim', 'd_optim', 'args', 'ada_aug_p'}`, as StyleGAN scripts save them",
        lambda: _both(
            lambda: {
                "g": _net(),
                "d": {"c.weight": _r(2, 2)},
                "g_ema": _net(),
                "g_optim": _adam(_r(4, 3)),
                "d_optim": _adam(_r(2, 2)),
                "args": Namespace(size=8),
                "ada_aug_p": 0.1,
            }
        ),
        says=("parts joined",),
        holds=_names(*(f"{p}.fc.{n}" for p in ("g", "g_ema") for n in ("weight", "bias")), "d.c.weight"),
    ),
    "an averaged generator and the mean of its latents": Situation(
        "`{'g_ema': …, 'latent_avg': tensor}`, a converted StyleGAN",
        lambda: _both(lambda: {"g_ema": _net(), "latent_avg": _r(5)}),
        says=("parts joined",),
        holds=_names("g_ema.fc.weight", "g_ema.fc.bias", "latent_avg"),
    ),
    "student, teacher and the loss's centre": Situation(
        "`{'student', 'teacher', 'optimizer', 'args', 'dino_loss'}` of self-distillation",
        lambda: _both(
            lambda: {
                "student": _net(),
                "teacher": _net(),
                "optimizer": _adam(_r(4, 3)),
                "args": Namespace(a=1),
                "dino_loss": {"center": _r(1, 4)},
            }
        ),
        says=("parts joined",),
        holds=_mean("teacher.fc.bias", "teacher", "fc.bias"),
    ),
    "names of a momentum encoder with its queue": Situation(
        "`encoder_q.*`, `encoder_k.*`, `queue`, `queue_ptr`",
        lambda: _both(
            lambda: {
                "state_dict": {f"module.encoder_{k}.{n}": v for k in "qk" for n, v in _net().items()}
                | {"module.queue": _r(4, 9), "module.queue_ptr": torch.tensor([3])}
            }
        ),
        holds=_mean("encoder_q.fc.weight", "state_dict", "module.encoder_q.fc.weight"),
    ),
    "a sequence model with its configuration objects": Situation(
        "`{'args': Namespace, 'cfg': …, 'model', 'last_optimizer_state', 'criterion'}`",
        lambda: _both(
            lambda: {
                "args": Namespace(arch="t"),
                "model": _net(),
                "criterion": {},
                "last_optimizer_state": _adam(_r(4, 3)),
                "optimizer_history": [{"num_updates": 3}],
            }
        ),
        holds=_and(_names("fc.weight", "fc.bias"), _mean("fc.bias", "model", "fc.bias")),
    ),
    "a running mean of the model beside it": Situation(
        "`{'model', 'model_avg' (float64), 'optimizer', 'grad_scaler', 'sampler'}` of a speech recipe",
        lambda: _both(
            lambda: {
                "model": _net(),
                "model_avg": {n: v.double() for n, v in _net().items()},
                "optimizer": _adam(_r(4, 3)),
                "grad_scaler": {"scale": 4.0},
                "batch_idx_train": 5,
            }
        ),
        holds=_mean("fc.weight", "model", "fc.weight"),
    ),
    "medical segmentation's own key": Situation(
        "`{'network_weights', 'optimizer_state', 'grad_scaler_state', 'init_args', 'trainer_name', …}`",
        lambda: _both(
            lambda: {
                "network_weights": _net(),
                "optimizer_state": _adam(_r(4, 3)),
                "grad_scaler_state": None,
                "init_args": {"plans": {"a": 1}},
                "trainer_name": "T",
                "inference_allowed_mirroring_axes": (0, 1),
                "logging": {"loss": [1.0]},
            }
        ),
        holds=_names("fc.weight", "fc.bias"),
    ),
    "a speech model with its dimensions": Situation(
        "`{'dims': {…}, 'model_state_dict': …}`",
        lambda: _both(lambda: {"dims": {"n_mels": 80}, "model_state_dict": _net()}),
        holds=_names("fc.weight", "fc.bias"),
    ),
    "a voice model with its configuration": Situation(
        "`{'weight': {…}, 'config': [...], 'info': '2epoch', 'sr': '40k', 'f0': 1}`",
        lambda: _both(
            lambda: {
                "weight": OrderedDict(_net()),
                "config": [1025, 32],
                "info": "2epoch",
                "sr": "40k",
                "f0": 1,
            }
        ),
        holds=_mean("fc.weight", "weight", "fc.weight"),
    ),
    "a weight averaging callback": Situation(
        "`state_dict` holds the average, `current_model_state` the model that trains on",
        lambda: _both(
            lambda: {
                "pytorch-lightning_version": "2.5",
                "state_dict": {f"model.{n}": v for n, v in _net().items()},
                "current_model_state": {f"model.{n}": v for n, v in _net().items()},
                "averaging_state": {"n_averaged": torch.tensor(4)},
                "optimizer_states": [_adam(_r(4, 3))],
                "callbacks": {},
                "loops": {},
            }
        ),
        holds=lambda: torch.allclose(
            next(v for n, v in load_file(WRITTEN).items() if n.endswith("fc.bias")),
            sum(torch.load(f)["state_dict"]["model.fc.bias"] for f in ("a.pt", "b.pt")) / 2,
        ),
    ),
    "an average inside the state dict, in one file only": Situation(
        "`model.*` and `model_ema.*`, `model_ema.decay`, `model_ema.num_updates` in A, `model.*` alone in B",
        lambda: (
            torch.save(
                {
                    "state_dict": {
                        "model.w": _r(3, 3),
                        "model_ema.w": _r(3, 3),
                        "model_ema.decay": torch.tensor(0.9),
                        "model_ema.num_updates": torch.tensor(3),
                    }
                },
                "a.pt",
            ),
            torch.save({"state_dict": {"model.w": _r(3, 3)}}, "b.pt"),
        ),
        code=4,
        says=("--extra",),
    ),
    "positions that newer versions no longer store": Situation(
        "`embeddings.position_ids` in one file, absent in the other",
        lambda: (
            torch.save(_net(**{"embeddings.position_ids": torch.arange(7)[None]}), "a.pt"),
            torch.save(_net(), "b.pt"),
        ),
        code=4,
        says=("position_ids", "--extra"),
    ),
    "a model with 9 input channels and one with 4": Situation(
        "an inpainting network and a plain one: the second axis of one tensor differs",
        lambda: (
            torch.save(_net(**{"in.weight": _r(8, 9, 3, 3)}), "a.pt"),
            torch.save(_net(**{"in.weight": _r(8, 4, 3, 3)}), "b.pt"),
        ),
        code=4,
        says=("in.weight",),
    ),
    "a vocabulary with one more token": Situation(
        "embeddings and output of 11 rows beside 10",
        lambda: (
            torch.save({"embed.weight": _r(11, 3), "head.weight": _r(11, 3)}, "a.pt"),
            torch.save({"embed.weight": _r(10, 3), "head.weight": _r(10, 3)}, "b.pt"),
        ),
        code=4,
        says=("--heads",),
    ),
    "weights that another tool would have normalised": Situation(
        "`--weights 0.1,1.0`",
        lambda: _both(_net),
        command=MERGE + " --weights 0.1,1.0",
        code=2,
        says=("1/11,10/11",),
    ),
    "half and bfloat16 in one merge": Situation(
        "float16 beside bfloat16",
        lambda: (torch.save({"w": _r(4, 4).half()}, "a.pt"), torch.save({"w": _r(4, 4).bfloat16()}, "b.pt")),
        says=("different dtypes",),
        holds=lambda: load_file(WRITTEN)["w"].dtype == torch.float16,
    ),
    "pointers in place of files": Situation(
        "a clone without `git lfs pull`: text of three lines called `.safetensors`",
        lambda: [
            Path(n).write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1024\n"
            )
            for n in ("a.safetensors", "b.safetensors")
        ],
        command="merge a.safetensors b.safetensors --method none -o out.safetensors",
        code=3,
        says=("Git LFS",),
    ),
    "a web page in place of a file": Situation(
        "a download that needed a login",
        lambda: [
            Path(n).write_text("<!DOCTYPE html><html><title>Sign in</title></html>") for n in ("a.pt", "b.pt")
        ],
        code=3,
        says=("a.pt",),
    ),
    "a detector's pickle of numpy arrays": Situation(
        "`model_final.pkl` of arrays, pickled without torch.save",
        lambda: [
            Path(n).write_bytes(
                pickle.dumps({"model": {"w": np.ones((2, 2), np.float32)}, "__author__": "zoo"}, protocol=2)
            )
            for n in ("a.pkl", "b.pkl")
        ],
        command="merge a.pkl b.pkl --method none -o out.safetensors",
        holds=_names("w"),
    ),
    "the optimizer's file": Situation(
        "`optimizer.pt` given for the model",
        lambda: _both(lambda: _adam(_r(4, 3), _r(4))),
        code=3,
        says=("optimizer",),
    ),
    "the old spectral norm": Situation(
        "`weight_bar`, `weight_u`, `weight_v` of a wrapper that many repositories carry",
        lambda: _both(_bar),
        says=("spectral norm",),
        holds=lambda: abs(_norm(load_file(WRITTEN), "conv.module.weight") - 1) < 1e-4,
    ),
    "LoHa": Situation(
        "`hada_w1_a` and its kin: products of four factors",
        lambda: _both(
            lambda: (
                {
                    f"lora_unet_q.hada_w{i}_{s}": _r(4, 2) if s == "a" else _r(2, 4)
                    for i in (1, 2)
                    for s in "ab"
                }
                | {"lora_unet_q.alpha": torch.tensor(1.0)}
            )
        ),
        code=4,
        says=("adapter", "merge_and_unload"),
    ),
    "norms by their old names": Situation(
        "`LayerNorm.gamma`, `beta` in one file, `weight`, `bias` in the other",
        lambda: (
            torch.save(
                {"e.weight": _r(4, 4)}
                | {f"l{k}.LayerNorm.{n}": _r(4) for k in range(9) for n in ("gamma", "beta")},
                "a.pt",
            ),
            torch.save(
                {"e.weight": _r(4, 4)}
                | {f"l{k}.LayerNorm.{n}": _r(4) for k in range(9) for n in ("weight", "bias")},
                "b.pt",
            ),
        ),
        code=4,
    ),
    "one model saved while it was compiled": Situation(
        "`_orig_mod.` before every name of one file",
        lambda: (
            torch.save({f"_orig_mod.{n}": v for n, v in _net().items()}, "a.pt"),
            torch.save(_net(), "b.pt"),
        ),
        holds=_names("fc.weight", "fc.bias"),
    ),
    "wrappers in the middle of names": Situation(
        "`conv.0.module.1.weight`: a layer that is called module",
        lambda: _both(lambda: {"conv.0.module.1.weight": _r(3, 3)}),
        holds=_names("conv.0.module.1.weight"),
    ),
    "extra states of a transformer engine": Situation(
        "`_extra_state` holds bytes",
        lambda: _both(lambda: _net(**{"fc._extra_state": io.BytesIO(b"x")})),
        holds=_names("fc.weight", "fc.bias"),
        code=0,
    ),
    "a pipeline of several models": Situation(
        "a folder with `model_index.json`: unet, vae, text encoder",
        lambda: [
            _folder(
                d,
                {
                    "model_index.json": {
                        "_class_name": "P",
                        "unet": ["diffusers", "U"],
                        "vae": ["diffusers", "V"],
                    },
                    "unet/diffusion_pytorch_model.safetensors": {"w": _r(2, 2)},
                    "vae/diffusion_pytorch_model.safetensors": {"v": _r(2, 2)},
                },
            )
            for d in "ab"
        ],
        command="merge a b --method none -o out/",
        code=3,
        says=("unet",),
    ),
    "an embedding model with a dense layer in a folder of its own": Situation(
        "`modules.json` names `.` and `2_Dense`",
        lambda: [
            _folder(
                d,
                {
                    "modules.json": [
                        {"idx": 0, "name": "0", "path": "", "type": "T"},
                        {"idx": 1, "name": "1", "path": "2_Dense", "type": "D"},
                    ],
                    "model.safetensors": {"w": _r(2, 2)},
                    "2_Dense/model.safetensors": {"linear.weight": _r(2, 2)},
                },
            )
            for d in "ab"
        ],
        command="merge a b --method none -o out/",
        code=3,
        says=("2_Dense",),
    ),
    "names without values": Situation(
        "a shard of ZeRO stage 3: tensors of 0 values under their names",
        lambda: _both(
            lambda: {
                "module": {"fc.weight": torch.empty(0), "fc.bias": torch.empty(0)},
                "param_shapes": [OrderedDict({"fc.weight": torch.Size([4, 3])})],
                "ds_version": "0.14",
                "dp_world_size": 2,
            }
        ),
        code=3,
        says=("zero_to_fp32",),
    ),
    "one of two shards of an optimizer": Situation(
        "`mp_rank_00_model_states.pt` beside `zero_pp_rank_0_mp_rank_00_optim_states.pt` in `global_step10/`",
        lambda: [
            _folder(
                d,
                {
                    "latest": {},
                    "global_step10/mp_rank_00_model_states.pt": _net(),
                    "global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt": _net(),
                },
            )
            for d in "ab"
        ],
        command="merge a b --method none -o out/",
        code=3,
    ),
    "an archive of a speech toolkit": Situation(
        "`.nemo`, a tar of a configuration and weights",
        lambda: [_tar(n) for n in ("a.nemo", "b.nemo")],
        command="merge a.nemo b.nemo --method none -o out.safetensors",
        code=3,
        says=("tar",),
    ),
    "an archive of a reinforcement learner": Situation(
        "a zip with `policy.pth`, `policy.optimizer.pth` and `data`",
        lambda: [
            _zip(n, {"data": "{}", "policy.pth": _bytes(_net()), "policy.optimizer.pth": _bytes({})})
            for n in ("a.zip", "b.zip")
        ],
        command="merge a.zip b.zip --method none -o out.safetensors",
        code=3,
        says=("policy.pth",),
    ),
    "averages of clients as numpy files": Situation(
        "`np.savez` of arrays without names",
        lambda: [np.savez(n, np.ones(3), np.ones(2)) for n in ("a.npz", "b.npz")],
        command="merge a.npz b.npz --method none -o out.safetensors",
        code=3,
        says=("NumPy",),
    ),
    "a list of state dicts": Situation(
        "`[policy, critic]` saved as a list",
        lambda: _both(lambda: [_net(), {"c.weight": _r(2, 2)}]),
        holds=_names("0.fc.weight", "0.fc.bias", "1.c.weight"),
    ),
    "numbers that diverged": Situation(
        "one infinite value in a norm's variance",
        lambda: (
            torch.save(_net(), "a.pt"),
            torch.save(_net(**{"fc.bias": torch.tensor([1.0, float("inf"), 0, 0])}), "b.pt"),
        ),
        code=3,
        says=("b.pt", "fc.bias"),
    ),
    "quantised to 8 bits": Situation(
        "int8 weights with `SCB`",
        lambda: _both(
            lambda: {"fc.weight": torch.randint(-9, 9, (4, 4), dtype=torch.int8), "fc.SCB": _r(4).abs()}
        ),
        code=4,
        says=("bitsandbytes",),
    ),
    "agents in a dictionary of dictionaries": Situation(
        "`{'agents': {'a0': {'actor': {…}, 'critic': {…}}}, 'step': 5}`",
        lambda: _both(
            lambda: {"agents": {"a0": {"actor": _net(), "critic": {"c.weight": _r(2, 2)}}}, "step": 5}
        ),
        holds=lambda: len(load_file(WRITTEN)) == 3,
    ),
    "windows that are shifted otherwise": Situation(
        "`attn_mask` of 0 and −100 for another shift, beside weights of one shape",
        lambda: [
            torch.save(
                _net(**{"blocks.1.attn_mask": -100.0 * (torch.arange(16.0) > k).view(4, 4)}), f"{n}.pt"
            )
            for n, k in zip("ab", (3, 7), strict=True)
        ],
        code=4,
        says=("blocks.1.attn_mask", "--ignore"),
    ),
    "a window that is one number": Situation(
        "`attn.window_size`, an integer, is 7 in one file and 14 in the other",
        lambda: [
            torch.save(_net(**{"attn.window_size": torch.tensor(k)}), f"{n}.pt")
            for n, k in zip("ab", (7, 14), strict=True)
        ],
        code=4,
        says=("attn.window_size", "--ignore"),
    ),
    "splines on grids of their own": Situation(
        "`layers.0.grid` of a KAN that each run fitted to its own data",
        lambda: [
            torch.save(_net(**{"layers.0.grid": torch.linspace(-k, k, 12).repeat(3, 1)}), f"{n}.pt")
            for n, k in zip("ab", (1.0, 1.4), strict=True)
        ],
        code=4,
        says=("layers.0.grid", "--ignore"),
    ),
    "noises of another schedule": Situation(
        "`sigmas` without their product: another largest one",
        lambda: [
            torch.save(_net(sigmas=torch.linspace(k ** (1 / 7), 0.4, 40) ** 7), f"{n}.pt")
            for n, k in zip("ab", (80.0, 14.6), strict=True)
        ],
        code=4,
        says=("sigmas", "--ignore"),
    ),
    "anchors of other data": Situation(
        "`model.24.anchors` of a detector that fitted them to its data",
        lambda: [
            torch.save(_net(**{"model.24.anchors": _r(3, 3, 2).abs() + 1}), f"{n}.pt") for n in ("a", "b")
        ],
        code=4,
        says=("model.24.anchors", "--ignore"),
    ),
    "decays of two fine-tunes": Situation(
        "`att.time_decay` of RWKV, which began as a formula and was trained",
        lambda: _both(
            lambda: _net(**{"att.time_decay": torch.linspace(0, 1, 32) ** 1.1 * 8 - 5 + 0.01 * _r(32)})
        ),
        holds=_mean("att.time_decay", "att.time_decay"),
    ),
    "metrics by rare names": Situation(
        "integers of a metric that is saved with the model, and of no class's name",
        lambda: _both(lambda: _net(**{"score.by_class": torch.randint(20, 900, (4,))})),
        holds=_names("fc.weight", "fc.bias", "score.by_class"),
    ),
    "a running mean with its own counter": Situation(
        "`{'ema': {'online_model.*', 'ema_model.*', 'initted', 'step'}}`",
        lambda: _both(
            lambda: {
                "ema": {f"{part}.{n}": v for part in ("online_model", "ema_model") for n, v in _net().items()}
                | {"initted": torch.tensor(True), "step": torch.randint(9, ())}
            }
        ),
        holds=_mean("ema_model.fc.weight", "ema", "ema_model.fc.weight"),
    ),
    "LoRA of a pipeline": Situation(
        "`unet.….lora_A.weight` and `lora_B.weight`, as diffusers saves them",
        lambda: [
            save_file(
                {f"unet.q.lora_{x}.weight": _r(2, 4) if x == "A" else _r(4, 2) for x in "AB"},
                f"{n}.safetensors",
            )
            for n in "ab"
        ],
        command="merge a.safetensors b.safetensors --method none -o out.safetensors",
        says=("adapted modules",),
        holds=lambda: torch.allclose(
            _added(WRITTEN), (_added("a.safetensors") + _added("b.safetensors")) / 2, atol=1e-5
        ),
    ),
    "the folder of a cache": Situation(
        "`models--org--name` with `snapshots/REVISION/` in it",
        lambda: [
            _folder(f"models--org--{n}", {"refs/main": "", "snapshots/0ab1/model.safetensors": _net()})
            for n in "ab"
        ],
        command="merge models--org--a models--org--b --method none -o out.safetensors",
        code=3,
        says=("snapshots/0ab1",),
    ),
    "one model in two formats, by two names": Situation(
        "`model.safetensors` with `model.enc.…`, `pytorch_model.bin` with `bert.…` of the same tensors",
        lambda: [_in_two_formats(n, _net()) for n in "ab"],
        command="merge a b --method none -o out.safetensors",
        holds=_names("model.enc.fc.weight", "model.enc.fc.bias"),
    ),
    "two prompts": Situation(
        "`prompt_embeddings` with `peft_type` PROMPT_TUNING",
        lambda: [
            _folder(
                n,
                {
                    "adapter_model.safetensors": {"prompt_embeddings": _r(8, 4)},
                    "adapter_config.json": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8},
                },
            )
            for n in "ab"
        ],
        command="merge a b --method none -o out/",
        code=4,
        says=("PROMPT_TUNING", "each prompt"),
    ),
}
