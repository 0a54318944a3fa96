"""The one currency: what a client sends to the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from keyhole.errors import BadUpdate, one_line
from keyhole.spelling import shorten
from keyhole.untrusted import check_tensor_file, not_safetensors

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""The floating types that defenses compute in."""


@dataclass(frozen=True)
class Update:
    """The change of every parameter that a client reports, and how it came about.

    ``change[name] = w_after - w_before``. A client that shares a gradient ``g`` is one step of
    SGD with ``lr=1``: its change is ``-g``, bit for bit. Integer buffers may be among the tensors;
    every operation here passes them through untouched, and :meth:`check_defended` says which may
    leave a client so.
    """

    change: Mapping[str, Tensor]
    steps: int = 1
    lr: float = 1.0
    batch_size: int = 1
    examples: int = 1

    def __post_init__(self) -> None:
        check_is_a(Mapping, self.change)
        if self.steps < 1 or not 0 < self.lr < math.inf:
            raise BadUpdate(
                f"an update after {self.steps} steps of learning rate {self.lr} makes no sense: "
                "both must be positive"
            )

    @classmethod
    def from_gradient(
        cls,
        gradient: Mapping[str, Tensor | None] | Sequence[Tensor | None],
        *,
        model: nn.Module | None = None,
        batch_size: int = 1,
    ) -> Update:
        """The update of a client that shares the gradient of one batch.

        The gradient is by parameter name, or as ``torch.autograd.grad`` returns it: in the order
        of ``model``'s parameters. A parameter whose gradient is None reports nothing.

        >>> layer = nn.Linear(2, 1)
        >>> loss = layer(torch.ones(1, 2)).sum()
        >>> gradient = torch.autograd.grad(loss, list(layer.parameters()))
        >>> Update.from_gradient(gradient, model=layer).change["weight"]
        tensor([[-1., -1.]])
        """
        named = gradient if isinstance(gradient, Mapping) else named_gradient(gradient, model)
        change = {name: -g.detach() for name, g in named.items() if g is not None}
        made = cls(change, batch_size=batch_size, examples=batch_size)
        return made if model is None else made.check_against(model.state_dict())

    def gradient(self) -> dict[str, Tensor]:
        """The mean gradient over the local steps, ``-change / (lr * steps)``, floats only."""
        scale = -1.0 / (self.lr * self.steps)
        return {k: v * scale for k, v in self.change.items() if v.is_floating_point()}

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Update:
        """Applies ``function(name, tensor)`` to the floating tensors; others stay as they are."""
        changed = {
            name: function(name, tensor) if tensor.is_floating_point() else tensor
            for name, tensor in self.change.items()
        }
        return replace(self, change=changed)

    def norm(self) -> float:
        """The Euclidean norm over all floating tensors."""
        floats = [v for v in self.change.values() if v.is_floating_point()]
        if not floats:
            return 0.0
        return float(torch.stack([v.double().norm() for v in floats]).norm())

    def check(self) -> Update:
        """Returns itself, or raises :class:`BadUpdate` where a value is NaN or infinite."""
        check_finite(
            self.change,
            "the update has",
            "check the model's weights, the images and the learning rate",
        )
        return self

    def check_defended(self, weights: Mapping[str, Tensor] | None) -> Update:
        """Returns itself, or raises :class:`BadUpdate` where a tensor would leave undefended.

        Defenses act on floating tensors. Of the others only integer buffers of the global model,
        whose tensors are ``weights``, may leave: unchanged, or if they hold one number, as batch
        norm's count of batches does. Without ``weights`` none can be told to be the model's own;
        among them they may be float64, which is what becomes of integers that servers average.
        """
        for name, tensor in self.change.items():
            own = None if weights is None else weights.get(name)
            if tensor.is_complex():
                why = "and no defense acts on complex numbers: send real ones"
            elif tensor.is_floating_point():
                if own is None or own.is_floating_point():
                    continue
                why = f"where the model has {kind_of(own)}: send the model's own type"
            elif weights is None:
                why = "which may be no buffer of the model: pass ClientSide(model=...)"
            elif own is None or own.dtype not in (tensor.dtype, torch.float64):
                why = "which is no integer buffer of the model: no defense acts on integers"
            elif tensor.numel() > 1 and tensor.any():
                why = "which changed and holds several numbers: no defense acts on integers"
            else:
                continue
            raise BadUpdate(f"the update has {kind_of(tensor)} in {shorten(name)}, {why}")
        return self

    def check_against(self, weights: Mapping[str, Tensor]) -> Update:
        """Returns itself, or raises :class:`BadUpdate` where it is another model's."""
        for name, tensor in self.change.items():
            if name not in weights:
                raise BadUpdate(f"the update has {shorten(name)}, which the model does not have")
            if tensor.shape != weights[name].shape:
                raise BadUpdate(
                    f"the update's {shorten(name)} has shape {tuple(tensor.shape)}, "
                    f"the model's {tuple(weights[name].shape)}: it belongs to another model"
                )
        return self

    def save(self, path: Path) -> None:
        """Writes the update as safetensors, its history in the header."""
        header = {"steps": self.steps, "lr": self.lr, "batch_size": self.batch_size}
        metadata = {k: repr(v) for k, v in {**header, "examples": self.examples}.items()}
        save_file({k: v.contiguous() for k, v in self.change.items()}, path, metadata)

    @classmethod
    def load(cls, path: Path) -> Update:
        """Reads what :meth:`save` wrote; a header without history means one gradient."""
        change, header = read_safetensors(path)
        try:
            return cls(
                change,
                steps=int(header.get("steps", "1")),
                lr=float(header.get("lr", "1.0")),
                batch_size=int(header.get("batch_size", "1")),
                examples=int(header.get("examples", header.get("batch_size", "1"))),
            ).check()
        except ValueError as error:
            raise BadUpdate(f"{path}: its header cannot be read ({one_line(error)})") from None


def check_finite(tensors: Mapping[str, Tensor], whose: str, remedy: str) -> None:
    """Raises :class:`BadUpdate` where a value is NaN or infinite: "WHOSE 3 NaN ...: REMEDY"."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dtype not in FLOATS:
            raise BadUpdate(f"{whose} {kind_of(tensor)} in {shorten(name)}: use float32 or float16")
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        if tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.double)).isfinite():
            continue  # NaN and infinity survive any sum, which is quicker to look at
        count = int((~torch.isfinite(tensor)).sum())
        if count:
            raise BadUpdate(f"{whose} {count} NaN or infinite values in {shorten(name)}: {remedy}")


def check_weights(weights: Mapping[str, Tensor]) -> None:
    """Raises :class:`BadUpdate` where the server's weights, buffers too, are not all finite.

    A client must not train on them: one NaN is enough to make a norm, and with it a clip, void.
    """
    check_finite(weights, "the global weights have", "a client does not train on such a model")


def difference(end: Tensor, start: Tensor) -> Tensor:
    """What leads from ``start`` to ``end``; of bools, which have no minus, where they differ."""
    return end ^ start if end.dtype == torch.bool else end - start


def in_type_of(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` in the type of ``like``; a mean of integers becomes the nearest one.

    >>> in_type_of(torch.tensor(2.9999), torch.tensor(1))
    tensor(3)
    """
    whole = tensor.is_floating_point() and not like.is_floating_point()
    return (tensor.round() if whole else tensor).to(like)


def sum_of(start: Tensor, change: Tensor) -> Tensor:
    """``start`` after a change that :func:`difference` told."""
    return start ^ change if change.dtype == torch.bool else start + change


def kind_of(tensor: Tensor) -> str:
    """A tensor's type as users write it.

    >>> kind_of(torch.tensor([1]))
    'int64'
    """
    return str(tensor.dtype).removeprefix("torch.")


def named_gradient(
    gradient: Sequence[Tensor | None], model: nn.Module | None
) -> dict[str, Tensor | None]:
    """A bare list of gradients by the names of the parameters, all of them or the trained ones."""
    if model is None:
        raise not_an_update(gradient)
    every = dict(model.named_parameters())
    trained = [name for name, parameter in every.items() if parameter.requires_grad]
    found = list(gradient)
    for names in (list(every), trained):
        if len(names) == len(found):
            return dict(zip(names, found, strict=True))
    raise BadUpdate(
        f"{len(found)} gradients for a model of {len(every)} parameters, {len(trained)} of them "
        "trained: pass one for each, in the order of model.parameters()"
    )


def check_is_a(kind: type, thing: object) -> None:
    """Raises :class:`BadUpdate` where a bare gradient stands for an update or its tensors."""
    if not isinstance(thing, kind):
        raise not_an_update(thing)


def not_an_update(thing: object) -> BadUpdate:
    """The error for what is handed in where an update is expected."""
    return BadUpdate(
        f"{type(thing).__name__} is no update by parameter name: make one with "
        "Update.from_gradient(gradients, model=model)"
    )


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file; nothing else is ever unpickled.

    Tensors get memory of their own: safetensors' own lies at any address, and kernels round
    otherwise where it does not lie as torch's does.
    """
    check_tensor_file(path)  # safetensors would wait for ever at a pipe
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise not_safetensors(path, error) from None
