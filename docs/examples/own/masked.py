"""A masked language model: batches are dictionaries, logits are (N, T, characters), −100 does not count."""

import torch
from torch import nn

from rebasin_cli.datasets import open_data

LETTERS = 71  # one more than there are characters: the mask


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 24)
        self.near = nn.Conv1d(24, 48, 5, padding=2)
        self.inner = nn.Linear(48, 48)
        self.head = nn.Linear(48, LETTERS)

    def forward(self, text):
        seen = torch.relu(self.near(self.embed(text).transpose(1, 2))).transpose(1, 2)
        return self.head(torch.relu(self.inner(seen)))


def loader(split):
    draw = torch.Generator().manual_seed(0)
    batches = []
    for text, _ in open_data("alice", split, batch_size=32, limit=640 if split == "train" else 128):
        hidden = torch.rand(text.shape, generator=draw) < 0.15
        masked = text.masked_fill(hidden, LETTERS - 1)
        batches.append({"text": masked, "labels": text.masked_fill(~hidden, -100)})
    return batches


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.transpose(1, 2), targets)


if __name__ == "__main__":
    from training import train

    train(Net, lambda split: [(b["text"], b["labels"]) for b in loader(split)], loss, epochs=4)
