"""A Flower strategy: clients' networks are aligned to the server's before they are averaged.

Averaging as usual lets hidden units that mean the same cancel each other, where they stand in another order.
"""

import numpy
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

import rebasin_cli


class FedAligned(FedAvg):
    """`FedAvg` of clients that are aligned; `network` is what they train; `spec` None: found from tensors."""

    def __init__(self, network, spec=None, **options):
        super().__init__(**options)
        self.network, self.spec = network, spec
        self.names = list(network.state_dict())

    def aggregate_fit(self, server_round, results, failures):
        if results:
            arrays = [parameters_to_ndarrays(fit.parameters) for _, fit in results]
            clients = [dict(zip(self.names, values, strict=True)) for values in arrays]
            first, *others = clients
            if others:
                found = rebasin_cli.align(first, *others, self.spec, network=self.network, prove=False)
                clients = [first, *found.models[1:]]
            for (_, fit), model in zip(results, clients, strict=True):
                fit.parameters = ndarrays_to_parameters([numpy.asarray(model[name]) for name in self.names])
        return super().aggregate_fit(server_round, results, failures)
