"""Segmentation: logits (N, classes, height, width), and the intersection over union as an object."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 12, 3, padding=1)
        self.inner = nn.Conv2d(12, 16, 3, padding=1)
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, images):
        return self.out(torch.relu(self.inner(torch.relu(self.down(images)))))


def loader(split):
    """Bars and squares in noise; what a pixel belongs to is its class."""
    draw = torch.Generator().manual_seed(len(split))
    batches = []
    for _ in range(10 if split == "train" else 4):
        classes = torch.zeros(16, 12, 12, dtype=torch.int64)
        places = torch.randint(0, 8, (16, 3), generator=draw).tolist()
        for one, (x, y, z) in zip(classes, places, strict=True):
            one[:, z] = 1
            one[y : y + 4, x : x + 4] = 2
        noise = torch.randn(16, 1, 12, 12, generator=draw)
        batches.append((classes[:, None] - 1.0 + 0.3 * noise, classes))
    return batches


class IoU:
    """Over all pixels of the set, the mean of the classes."""

    name, range = "IoU", (0, 1)

    def __init__(self):
        self.reset()

    def reset(self):
        self.both, self.any = torch.zeros(3), torch.zeros(3)

    def update(self, outputs, targets):
        chosen = outputs.argmax(1)
        for k in range(3):
            self.both[k] += ((chosen == k) & (targets == k)).sum().cpu()
            self.any[k] += ((chosen == k) | (targets == k)).sum().cpu()

    def compute(self):
        return (self.both / self.any.clamp(min=1)).mean()


if __name__ == "__main__":
    from training import train

    train(Net, loader, nn.functional.cross_entropy, epochs=4)
