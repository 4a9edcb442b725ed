"""Two models of any of these examples, from two seeds: a.pt and b.pt."""

import torch


def train(net, loader, loss, epochs, rate=3e-3):
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), rate, weight_decay=1e-4)
        for _ in range(epochs):
            for inputs, targets in loader("train"):
                optimizer.zero_grad()
                outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
                loss(outputs, targets).mean().backward()
                optimizer.step()
        torch.save(model.state_dict(), f"{name}.pt")
