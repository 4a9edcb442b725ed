"""A Lightning callback: when training ends, the network is merged with one that was trained before."""

import torch
from lightning.pytorch import Callback

import rebasin_cli


class MergeWith(Callback):
    """Merge the module's `network` with weights in a file, aligned to it; `spec` None: found from tensors.

    Batches of the training loader re-estimate what averaging breaks (`repair_with="auto"`).
    """

    def __init__(self, file, spec=None, method="wm", attribute="network"):
        self.file, self.spec, self.method, self.attribute = file, spec, method, attribute
        self.merged = None

    def on_fit_end(self, trainer, module):
        network = getattr(module, self.attribute)
        other = torch.load(self.file, weights_only=True)
        own = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
        self.merged = rebasin_cli.merge(
            [own, other],
            self.spec,
            method=self.method,
            network=network.cpu(),
            train=trainer.train_dataloader,
        )
        network.load_state_dict(dict(self.merged.tensors))
