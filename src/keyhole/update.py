"""What a client sends to the server: the one format that defenses and attacks work on."""

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

    Args:
        change: The change of each parameter or buffer, by its name in the model.
        steps: Local steps that the change sums up.
        lr: Learning rate of these steps.
        batch_size: Images in each local batch.
        examples: Images that the client trained on in all; servers weight clients by it.
    """

    change: Mapping[str, Tensor]
    steps: int = 1
    lr: float = 1.0
    batch_size: int = 1
    examples: int = 1

    def __post_init__(self) -> None:
        check_type(Mapping, self.change)
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

        Args:
            gradient: By parameter name, or as ``torch.autograd.grad`` returns it: in the order of
                ``model.parameters()``. A parameter whose gradient is None is left out.
            model: The model that the gradient belongs to; its names and shapes are checked.
            batch_size: Images in the batch.

        >>> layer = nn.Linear(2, 1)
        >>> loss = layer(torch.ones(1, 2)).sum()
        >>> gradient = torch.autograd.grad(loss, list(layer.parameters()))
        >>> Update.from_gradient(gradient, model=layer).change["weight"]
        tensor([[-1., -1.]])
        """
        named = gradient if isinstance(gradient, Mapping) else name_gradients(gradient, model)
        change = {name: -g.detach() for name, g in named.items() if g is not None}
        update = cls(change, batch_size=batch_size, examples=batch_size)
        return update if model is None else update.check_against(model.state_dict())

    def gradient(self) -> dict[str, Tensor]:
        """The mean gradient over the local steps, ``-change / (lr * steps)``, floats only."""
        scale = -1.0 / (self.lr * self.steps)
        return {k: v * scale for k, v in self.change.items() if v.is_floating_point()}

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Update:
        """Applies a function to the floating tensors; the others stay as they are.

        Args:
            function: Called as ``function(name, tensor)``; returns the tensor's new value.
        """
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
        if floats[0].is_cuda:
            return float(norms_at_once(floats).norm())
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

        Defenses act on floating tensors. Of the others, only integer buffers of the global model
        may leave, and only unchanged or of one number, such as batch norm's count of batches.

        Args:
            weights: The tensors of the global model. Its integer buffers may be float64 here,
                since servers average them. None: no integer tensor may leave.
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
        """Returns itself, or raises :class:`BadUpdate` where it is another model's.

        Args:
            weights: The tensors of the model, as its ``state_dict()`` gives them.
        """
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
        """Writes the update as safetensors, with steps, learning rate and sizes in the header.

        Args:
            path: The file to write.
        """
        header = {"steps": self.steps, "lr": self.lr, "batch_size": self.batch_size}
        metadata = {k: repr(v) for k, v in {**header, "examples": self.examples}.items()}
        save_file({k: v.contiguous() for k, v in self.change.items()}, path, metadata)

    @classmethod
    def load(cls, path: Path) -> Update:
        """Reads what :meth:`save` wrote; a file with a bare header holds one gradient.

        Args:
            path: The safetensors file to read.
        """
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
    if are_finite_on_gpu(tensors):
        return
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dtype not in FLOATS:
            raise BadUpdate(f"{whose} {kind_of(tensor)} in {shorten(name)}: use float32 or float16")
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        wide = tensor if tensor.itemsize >= 4 else tensor.float()
        if wide.sum().isfinite():
            continue  # NaN and infinity survive any sum, which is quicker to check
        count = int((~torch.isfinite(tensor)).sum())
        if count:
            raise BadUpdate(f"{whose} {count} NaN or infinite values in {shorten(name)}: {remedy}")


def are_finite_on_gpu(tensors: Mapping[str, Tensor]) -> bool:
    """Returns whether all tensors lie on a GPU and are surely finite; the GPU is asked once."""
    inexact = [t for t in tensors.values() if t.is_floating_point() or t.is_complex()]
    if not inexact or not all(t.is_cuda and t.dtype in FLOATS for t in inexact):
        return False
    return bool(norms_at_once(inexact).isfinite().all())


def norms_at_once(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the Euclidean norm of each tensor, in float64; a few launches for all of them."""
    return torch.stack(torch._foreach_norm(list(tensors), dtype=torch.double))


def check_weights(weights: Mapping[str, Tensor]) -> None:
    """Raises :class:`BadUpdate` where the server's weights, buffers too, are not all finite.

    A client must not train on them: a single NaN makes norms, and so clipping, meaningless.
    """
    check_finite(weights, "the global weights have", "a client does not train on such a model")


def subtract(end: Tensor, start: Tensor) -> Tensor:
    """The change from ``start`` to ``end``; for bools, which have no minus, where they differ."""
    return end ^ start if end.dtype == torch.bool else end - start


def convert_type(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` in the type of ``like``; a mean of integers becomes the nearest one.

    >>> convert_type(torch.tensor(2.9999), torch.tensor(1))
    tensor(3)
    """
    whole = tensor.is_floating_point() and not like.is_floating_point()
    return (tensor.round() if whole else tensor).to(like)


def apply_change(start: Tensor, change: Tensor) -> Tensor:
    """``start`` after a change that :func:`subtract` found."""
    return start ^ change if change.dtype == torch.bool else start + change


def kind_of(tensor: Tensor) -> str:
    """A tensor's type as users write it.

    >>> kind_of(torch.tensor([1]))
    'int64'
    """
    return str(tensor.dtype).removeprefix("torch.")


def name_gradients(
    gradient: Sequence[Tensor | None], model: nn.Module | None
) -> dict[str, Tensor | None]:
    """Gives a list of gradients the names of all parameters, or of the trained ones."""
    if model is None:
        raise wrong_type_error(gradient)
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


def check_type(kind: type, thing: object) -> None:
    """Raises :class:`BadUpdate` where a bare gradient is passed as an update or its tensors."""
    if not isinstance(thing, kind):
        raise wrong_type_error(thing)


def wrong_type_error(thing: object) -> BadUpdate:
    """The error for something that is no update."""
    return BadUpdate(
        f"{type(thing).__name__} is no update by parameter name: make one with "
        "Update.from_gradient(gradients, model=model)"
    )


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file; pickles are never read.

    Tensors are copied to memory that torch allocates: that of safetensors lies at any address, and
    kernels round differently where memory is not aligned as torch's is.
    """
    check_tensor_file(path)  # safetensors would wait for ever at a pipe
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise not_safetensors(path, error) from None
