"""DP-SGD: every image's gradient is clipped, and their mean gets noise, in every local step."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from keyhole.defenses.base import ClientSide, Defense, Memory, caveats_of_buffers
from keyhole.defenses.noise_model import Noise, uniform_noise
from keyhole.defenses.traces import NormTrace, Trace
from keyhole.errors import DoesNotFit, one_line
from keyhole.models.dropout_sites import FixedMasks, MaskRecorder
from keyhole.models.private import (
    NOT_INSTALLED,
    copy_for_validation,
    is_opacus_installed,
    make_private,
)
from keyhole.update import Update, check_finite

FIX = (
    "Opacus can replace them (BatchNorm by GroupNorm): train "
    "keyhole.models.private.make_private(model), or ask for the model by the name dp:NAME"
)


@dataclass(frozen=True, kw_only=True)
class DpSgd(Defense):
    """Scales every image's gradient to norm ``clip`` where it is longer, and adds noise.

    N(0, (``noise * clip``)^2) is added to each value of the batch's sum, which is then divided by
    the batch size. Opacus clips, draws and accounts. Its figure, ``epsilon`` at ``delta``, covers
    all rounds of one client so far and assumes that every batch is a Poisson sample of the
    client's images. Keyhole's clients shuffle theirs instead, as is common, and for them the
    figure is only a guide; where every step takes all images it needs no such assumption. The
    noise's generator is not cryptographically secure: for audits, not for releasing a model.

    Args:
        noise: The noise multiplier: the standard deviation in units of ``clip``.
        clip: The largest norm of one image's gradient.
        delta: The probability for which ``epsilon`` is reported.
    """

    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    name: ClassVar[str] = "dpsgd"
    summary: ClassVar[str] = "clips every image's gradient and adds noise in every local step"
    paper: ClassVar[str] = "Abadi et al. 2016 (DP-SGD); Yousefpour et al. 2021 (Opacus)"
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig",)

    def caveats(self, model: nn.Module) -> list[str]:
        return caveats_of_buffers(model)

    def incompatibilities(self, model: nn.Module) -> list[str]:
        if not is_opacus_installed():
            return [NOT_INSTALLED]
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator

        replaceable = first_sentences(
            ModuleValidator.validate(copy_for_validation(model), strict=False)
        )
        fixed = copy_for_validation(make_private(model) if replaceable else model)
        hopeless = first_sentences(ModuleValidator.validate(fixed, strict=False))
        hopeless += first_sentences(GradSampleModule.validate(fixed, strict=False))[:1]
        if replaceable and not hopeless:
            return [*replaceable, FIX]
        return list(dict.fromkeys([*replaceable, *hopeless]))

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        self.validate(model)
        return model

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor]:
        side = side or ClientSide()
        samples = per_sample_gradients(model, inputs, labels)
        check_finite(samples, "the images' gradients have", "check the weights and the images")
        found = self._privatise(samples, side)
        images = len(inputs) if side.images is None else len(side.images)
        record_step(side.memory, self.noise, min(1.0, len(inputs) / images))
        self._record_clipping(samples, side)
        return [found.get(n, torch.zeros_like(p)) for n, p in model.named_parameters()]

    def _privatise(self, samples: dict[str, Tensor], side: ClientSide) -> dict[str, Tensor]:
        """Opacus' clipped and noised mean of gradients ``[batch, ...]``."""
        if not is_opacus_installed():
            raise DoesNotFit(NOT_INSTALLED)
        from opacus.optimizers import DPOptimizer

        # Opacus writes on the parameters it is given: these stand in for the model's own.
        leaves: dict[str, Any] = {n: nn.Parameter(g[0]) for n, g in samples.items()}
        for name, leaf in leaves.items():
            leaf.grad_sample = samples[name]
        first = next(iter(samples.values()))
        optimiser = DPOptimizer(
            torch.optim.SGD(leaves.values()),
            noise_multiplier=self.noise,
            max_grad_norm=self.clip,
            expected_batch_size=len(first),
            generator=side.generator_at(first),
        )
        optimiser.pre_step()
        return {name: leaf.grad for name, leaf in leaves.items()}

    def _record_clipping(self, samples: dict[str, Tensor], side: ClientSide) -> None:
        """Records the settings, and the share of the round's gradients that were clipped."""
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples.values()]).norm(dim=0)
        before = int(side.telemetry.get("samples", 0))
        clipped = before * float(side.telemetry.get("clipped_share", 0.0))
        clipped += int((norms > self.clip).sum())
        side.record(
            noise_multiplier=self.noise,
            delta=self.delta,
            samples=before + len(norms),
            clipped_share=clipped / (before + len(norms)),
        )

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        """The update unchanged; the budget spent so far is recorded once per round: it is slow."""
        if side is not None and DpSgd.name in side.memory:
            epsilon = compute_epsilon(side.memory, self.delta)
            side.record(epsilon=epsilon if math.isfinite(epsilon) else "infinite")
        return update

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        """The same in every value: the mean of the noise that each local step drew."""
        sigma = self.noise * self.clip / (update.batch_size * math.sqrt(update.steps))
        return uniform_noise(update, model, sigma)

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The noise, and the norm: the mean of clipped gradients is no longer than ``clip``."""
        sigma = self.noise * self.clip * update.lr * math.sqrt(update.steps) / update.batch_size
        limit = self.clip * update.lr * update.steps
        noise = super().expected_traces(update, model)
        return [*noise, NormTrace(limit, sigma, of_training=True)]

    def keeps_trace(self, trace: Trace) -> bool:
        """All: it acts in every step, and leaves the update as it is."""
        return True


def per_sample_gradients(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of every image's own loss, ``[batch, ...]``, for each trainable parameter.

    Opacus' hooks fail at dropout beside plain parameters (a ViT's class token) and at activations
    that work in place; vmap takes both. Dropout masks are drawn by one pass over the whole batch,
    where a caller's :class:`MaskRecorder` sees them, and are then used for each image.
    """
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    recorder = MaskRecorder()
    recorder.begin()

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor, masks: list[Tensor]) -> Tensor:
        with ReplayedMasks(masks):
            logits = functional_call(model, weights, (x[None],))
        return F.cross_entropy(logits, y[None])

    try:
        with torch.no_grad(), recorder:
            model(inputs)
        masks = [torch.unflatten(mask, 0, (len(inputs), -1)) for mask in recorder.masks[0]]
        each = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="different")
        found: dict[str, Tensor] = each(trained, inputs, labels, masks)
    except (RuntimeError, ValueError) as error:
        raise DoesNotFit(
            f"defense 'dpsgd' cannot take the gradient of every single image ({one_line(error)})"
        ) from None
    return found


class ReplayedMasks(FixedMasks):
    """Drops by given masks; dropout layers without one draw their own."""

    decides = False


def record_step(memory: Memory, noise: float, sample_rate: float) -> None:
    """Adds one step to the history ``[[noise, sample rate, steps], ...]`` in ``memory``."""
    accountant = load_accountant(memory)
    accountant.step(noise_multiplier=noise, sample_rate=sample_rate)
    steps: Counter[tuple[float, float]] = Counter()
    for kind_noise, kind_rate, count in accountant.history:
        steps[kind_noise, kind_rate] += count  # in any order they cost the same
    memory[DpSgd.name] = [[*kind, count] for kind, count in steps.items()]


def compute_epsilon(memory: Memory, delta: float) -> float:
    """The privacy budget that the steps in ``memory`` have spent."""
    accountant = load_accountant(memory)
    if any(noise**2 == 0 for noise, _, _ in accountant.history):
        return math.inf
    with warnings.catch_warnings():
        # At the ends of Opacus' range of orders the figure is still a bound, only not the best.
        warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)
        return float(accountant.get_epsilon(delta))


def load_accountant(memory: Memory) -> Any:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [tuple(entry) for entry in memory.get(DpSgd.name, [])]
    return accountant


def first_sentences(errors: Iterable[BaseException]) -> list[str]:
    """The first sentence of each error, each once.

    >>> first_sentences([ValueError("No BatchNorm. It mixes images."), ValueError("No BatchNorm.")])
    ['No BatchNorm']
    """
    first = (one_line(error).partition(". ")[0].rstrip("(. ") for error in errors)
    return list(dict.fromkeys(first))
