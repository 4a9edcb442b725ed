"""A callback of Hugging Face's Trainer: when training ends, models of other runs are averaged in, aligned."""

from safetensors.torch import load_file
from transformers import TrainerCallback

import rebasin_cli


class MergeWith(TrainerCallback):
    """Merge the model with weights of other runs; `spec` is its architecture's (None: found from tensors).

    Orders of units alone are searched (`method="wm"`), by weights, so no data are read.
    """

    def __init__(self, files, spec=None, method="wm"):
        self.files, self.spec, self.method = files, spec, method
        self.merged = None

    def on_train_end(self, args, state, control, model=None, **kwargs):
        own = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        others = [load_file(file) for file in self.files]
        self.merged = rebasin_cli.merge([own, *others], self.spec, method=self.method, repair_with="none")
        model.load_state_dict(dict(self.merged.tensors))
        return control
