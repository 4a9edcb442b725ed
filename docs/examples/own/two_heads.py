"""Two heads: a tuple out, and as targets a tuple of class numbers and heights."""

from torch import nn

from rebasin_cli.datasets import open_data


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
        self.digit, self.ink = nn.Linear(48, 10), nn.Linear(48, 1)

    def forward(self, images):
        seen = self.body(images.flatten(1))
        return self.digit(seen), self.ink(seen).squeeze(1)


def loader(split):
    """Which digit it is, and how much ink it has."""
    data = open_data("digits", split, batch_size=64)
    return [(images, (digits, images.flatten(1).mean(1))) for images, digits in data]


def loss(outputs, targets):
    (digits, ink), (number, amount) = outputs, targets
    return nn.functional.cross_entropy(digits, number, reduction="none") + 10 * (ink - amount).square()


def right(outputs, targets):
    return (outputs[0].argmax(1) == targets[0]).double()


def off(outputs, targets):
    return (outputs[1] - targets[1]).abs()


loss.name, right.range = "both heads' loss", (0, 1)
off.name, off.unit, off.larger_is_better = "ink off", "grey", False

if __name__ == "__main__":
    from training import train

    train(Net, loader, loss, epochs=8)
