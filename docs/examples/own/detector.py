"""Like a detector: a dictionary out, and as targets a list with a dictionary for every image."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU())
        self.hidden = nn.Linear(24 * 9, 48)
        self.box, self.score = nn.Linear(48, 4), nn.Linear(48, 1)

    def forward(self, images):
        seen = torch.relu(self.hidden(self.body(images).flatten(1)))
        return {"boxes": self.box(seen), "scores": self.score(seen).squeeze(1)}


def loader(split):
    """A bright box, or none: images without one have boxes (0, 4)."""
    draw = torch.Generator().manual_seed(len(split))
    batches = []
    for _ in range(16 if split == "train" else 6):
        images, targets = 0.2 * torch.randn(16, 1, 12, 12, generator=draw), []
        for image in images:
            x, y, w, h, there = torch.randint(3, 7, (5,), generator=draw).tolist()
            if there > 3:
                image[0, y - 3 : y - 3 + h, x - 3 : x - 3 + w] += 1
            box = torch.tensor([[x - 3, y - 3, w, h]]) / 12
            targets.append({"boxes": box[: there > 3]})
        batches.append((images, targets))
    return batches


def loss(outputs, targets):
    there = torch.tensor([float(len(each["boxes"])) for each in targets], device=outputs["scores"].device)
    lost = binary_cross_entropy_with_logits(outputs["scores"], there, reduction="none")
    off = [
        smooth_l1_loss(box[None], each["boxes"]) if len(each["boxes"]) else box.sum() * 0
        for box, each in zip(outputs["boxes"], targets, strict=True)
    ]
    return lost + 10 * torch.stack(off)


def noticed(outputs, targets):
    there = torch.tensor([bool(len(each["boxes"])) for each in targets], device=outputs["scores"].device)
    return ((outputs["scores"] > 0) == there).double()


loss.name, noticed.range = "detection loss", (0, 1)

if __name__ == "__main__":
    from training import train

    train(Net, loader, loss, epochs=8)
