"""Small folders as hubs hold them: Llamas that write Alice, a classifier of sentences, one of digits."""

import torch
import transformers

from rebasin_cli.datasets import open_data

SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 70,
}
LLAMA = SIZE | {"num_key_value_heads": 2}
BERT = SIZE | {"num_labels": 2}
VIT = SIZE | {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}


def sentences(split: str):
    """Batches of 100 sentences of 12 letters; the label is whether `x` (67) is in it."""
    rng = torch.Generator().manual_seed({"train": 1, "test": 2}[split])
    found = []
    for _ in range(10):
        ids = torch.randint(3, 66, (100, 12), generator=rng)
        labels = torch.randint(2, (100,), generator=rng)
        ids[labels == 1, 5] = 67
        found.append((ids, labels))
    return found


def train(network, batches, steps=60):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _, (inputs, targets) in zip(range(steps), batches, strict=False):
        logits = network(inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def made(name, seed, **options):
    torch.manual_seed(seed)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**options))


def text(start=0):
    data = open_data("alice", "train", batch_size=16)
    batches = list(data)[start:]
    return (batch for _ in range(9) for batch in batches)


if __name__ == "__main__":
    base = train(made("LlamaForCausalLM", 0, **LLAMA), text())
    for name, start in (("tunedA", 20), ("tunedB", 60)):
        tuned = made("LlamaForCausalLM", 0, **LLAMA)
        tuned.load_state_dict(base.state_dict())
        train(tuned, text(start), steps=20).save_pretrained(name)
    for seed, letter in enumerate("AB"):
        tied = made("LlamaForCausalLM", seed, **LLAMA, tie_word_embeddings=True)
        train(tied, text()).save_pretrained(f"llama{letter}")
        classes = made("BertForSequenceClassification", seed, **BERT)
        train(classes, 6 * sentences("train")).save_pretrained(f"bert{letter}")
        images = 5 * list(open_data("digits", "train", batch_size=100))
        train(made("ViTForImageClassification", seed, **VIT), images).save_pretrained(f"vit{letter}")
