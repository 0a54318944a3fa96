"""What clients train of a model, and send: ``head``, ``norm+head``, ``lora(r=8)``, ``adapters``.

Everything else stays as the server sent it, on every client.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.errors import DoesNotFit, one_line
from keyhole.models.adapters import WIDTH, add_adapters
from keyhole.models.heads import NORMS, find_head
from keyhole.models.shares import FINE_TUNINGS
from keyhole.registry import label_of
from keyhole.seeds import derive, seeded_globally

PEFT_MISSING = "LoRA is by Hugging Face's peft, which is not installed: pip install 'keyhole[peft]'"
AUTO = "auto"


class FineTuning(ABC):
    """Says which parameters of a model clients train, and adds what is missing for that."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, model: nn.Module) -> nn.Module:
        """Returns a copy of the model in which only what clients train requires a gradient.

        Args:
            model: The model as it was pretrained.
        """

    def __str__(self) -> str:
        return label_of(self)


@dataclass(frozen=True, kw_only=True)
class All(FineTuning):
    """All parameters."""

    name: ClassVar[str] = "all"

    def apply(self, model: nn.Module) -> nn.Module:
        return copy.deepcopy(model)


@dataclass(frozen=True, kw_only=True)
class Head(FineTuning):
    """The last linear layer.

    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    >>> [n for n, p in Head().apply(model).named_parameters() if p.requires_grad]
    ['2.weight', '2.bias']
    """

    name: ClassVar[str] = "head"

    def apply(self, model: nn.Module) -> nn.Module:
        return freeze_all_but(model, [require_head(model)])


@dataclass(frozen=True, kw_only=True)
class NormAndHead(FineTuning):
    """The norms' scales and shifts, and the last linear layer."""

    name: ClassVar[str] = "norm+head"

    def apply(self, model: nn.Module) -> nn.Module:
        norms = [name for name, module in model.named_modules() if isinstance(module, NORMS)]
        if not any(True for name in norms for _ in model.get_submodule(name).parameters()):
            raise DoesNotFit("share norm+head: the model has no norms with parameters: share head")
        return freeze_all_but(model, [*norms, require_head(model)])


@dataclass(frozen=True, kw_only=True)
class Adapters(FineTuning):
    """Adapters in every block of a vision transformer, and its head (Houlsby et al. 2019).

    Args:
        width: Rows of an adapter's down-projection.
    """

    width: Annotated[int, Field(ge=1, le=4096)] = WIDTH

    name: ClassVar[str] = "adapters"

    def apply(self, model: nn.Module) -> nn.Module:
        return add_adapters(model, self.width)


@dataclass(frozen=True, kw_only=True)
class Lora(FineTuning):
    """Low-rank changes of layers, ``W + alpha / r * B A``, by Hugging Face's peft (Hu et al. 2022).

    A starts at random, B at 0.

    Args:
        r: The rank: rows of A.
        alpha: The scale of the change, times r; None: r.
        targets: The layers, by the end of their names, with commas: ``qkv,proj``. ``auto``: the
            queries, keys and values of attention (``qkv``); where there are none, all linear layers
            but the head; where there are none of these either, all convolutions.
        head: Whether the last linear layer is trained as well.
        seed: Seed of A.
    """

    r: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    targets: str = AUTO
    head: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    name: ClassVar[str] = "lora"

    def apply(self, model: nn.Module) -> nn.Module:
        try:
            from peft import LoraConfig, inject_adapter_in_model  # an extra, and slow to import
        except ImportError:
            raise DoesNotFit(PEFT_MISSING) from None
        head = require_head(model) if self.head else None
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.alpha or self.r,
            target_modules=self.find_targets(model),
            exclude_modules=None if head is None else [head],
        )
        try:
            with seeded_globally(derive(self.seed, "lora")):
                changed: nn.Module = inject_adapter_in_model(config, copy.deepcopy(model))
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise DoesNotFit(f"share {self}: {one_line(error)}") from None
        changed.requires_grad_(False)
        for name, weight in changed.named_parameters():
            weight.requires_grad_("lora_" in name or name.rpartition(".")[0] == head)
        return changed.train(model.training)

    def find_targets(self, model: nn.Module) -> list[str]:
        """The names of the layers that are changed.

        Args:
            model: The model as it was pretrained.
        """
        if self.targets != AUTO:
            ends = [end.strip() for end in self.targets.split(",") if end.strip()]
            layers = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
            found = [n for n in layers if any(n == end or n.endswith(f".{end}") for end in ends)]
            if not found:
                raise DoesNotFit(
                    f"share lora: no layer's name ends with {self.targets!r}: the last are "
                    f"{', '.join(layers[-3:])}"
                )
            return found
        head = find_head(model)
        linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != head]
        attention = [name for name in linear if name.rpartition(".")[2] == "qkv"]
        plain = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.groups == 1]
        found = attention or linear or plain
        if not found:
            raise DoesNotFit("share lora: the model has no layer besides its head: share head")
        return found


def fine_tune(model: nn.Module, share: str | None) -> nn.Module:
    """Returns the model of which clients train and send what a text names.

    Args:
        model: The model as it was pretrained; it stays as it is.
        share: ``head``, ``norm+head``, ``lora(r=8)``, ``adapters`` or ``all``; None: all.
    """
    return model if share is None else FINE_TUNINGS.parse(share).apply(model)


def freeze_all_but(model: nn.Module, layers: list[str]) -> nn.Module:
    """Returns a copy of which only the parameters of these layers require a gradient."""
    changed = copy.deepcopy(model).requires_grad_(False)
    for layer in layers:
        changed.get_submodule(layer).requires_grad_(True)
    return changed


def require_head(model: nn.Module) -> str:
    """The name of the last linear layer."""
    head = find_head(model)
    if head is None:
        raise DoesNotFit("the model has no linear layer that could be its head")
    return head
