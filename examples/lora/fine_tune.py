"""A vision transformer of timm, fine-tuned whole or by LoRA: ``python fine_tune.py``.

One client takes one step on one photo. Whoever shares all weights shares the photo; whoever shares
LoRA's matrices and the head shares far less, but still the label.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import timm
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.optim import SGD

import keyhole
from keyhole.auditing.guard import Guard
from keyhole.auditing.self_check import SelfCheck
from keyhole.defenses import DEFENSES

LEARNING_RATE = 0.01


def make_model(share: str) -> nn.Module:
    """The network that the server sends; of one with LoRA, only that and the head are trained.

    ``pretrained=True`` would load weights where there is a network; here they are random.
    """
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10, depth=4
    )
    if share == "all":
        return vit
    lora = LoraConfig(r=4, target_modules=["qkv"], modules_to_save=["head"], lora_alpha=8)
    return get_peft_model(vit, lora).base_model.model  # the network, without peft's wrapper


def audit_client(share: str, defense: str, seconds: float) -> tuple[int, SelfCheck]:
    """How many values the client sends, and what attacks on them show."""
    data, model = keyhole.data.load("photos", image_size=32), make_model(share)
    images, labels = data.images([0]), data.labels[[0]]
    client = keyhole.protect(
        model,
        defense,
        optimiser=lambda weights: SGD([w for w in weights if w.requires_grad], lr=LEARNING_RATE),
        seed=0,
    )
    client.backward(data.normalise(client.images(images)), labels)
    client.optimiser.step()
    whole = client.update(batch_size=1)
    trained = {name for name, w in model.named_parameters() if w.requires_grad}
    change = {name: tensor for name, tensor in whole.change.items() if name in trained}
    sent = keyhole.Update(change, lr=LEARNING_RATE)  # nothing else leaves
    guard = Guard(model=model, data=data, defense=DEFENSES.parse(defense), seconds=seconds)
    return sum(t.numel() for t in change.values()), guard(sent, images, labels)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what both ways of sharing give away."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--defense", default="none", help="any of `keyhole list defenses`")
    parser.add_argument("--seconds", type=float, default=0, help="time for iterative attacks")
    options = parser.parse_args(arguments)
    for share in ("all", "lora"):
        count, found = audit_client(share, options.defense, options.seconds)
        print(f"share {share}: {count:,} values sent; {found.words}; {found.labels}")


if __name__ == "__main__":
    main()
