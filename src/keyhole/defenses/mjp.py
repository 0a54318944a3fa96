"""MJP: a masked jigsaw puzzle and an unknown position embedding for vision transformers."""

from __future__ import annotations

import copy
import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.defenses.base import ClientSide, Defense
from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import PatchEmbedding, Shape, input_shape, position_embedding
from keyhole.models.block_masks import block_masks
from keyhole.models.board import Localiser, Positions
from keyhole.models.jigsaw import Jigsaw, with_puzzle
from keyhole.models.puzzle import Rules
from keyhole.seeds import generator


@dataclass(frozen=True, kw_only=True)
class Mjp(Defense):
    """Covers a share ``gamma`` of the patches of every training image, block by block.

    Covered patches change places among themselves; in place of their position embeddings they
    get one ``unknown`` that all share. A localiser learns to tell known positions from their
    embeddings (DAL: ``nln``, ``ln`` or ``pca``), at ``dal_weight`` in the loss. ``positions``,
    ``dal`` and ``jigsaw`` also make the variants of the paper's Table 2: see :data:`VARIANTS`.

    ``level='image'`` shuffles squares of ``patch`` pixels before any network at all, positions and
    localiser aside: what the paper does with Swin and ResNet. ``per='batch'`` and ``share=0.5``
    are the authors' code: one puzzle a batch, in half of the batches.
    """

    gamma: Annotated[float, Field(ge=0, le=1)] = 0.1
    positions: Positions = "unknown"
    dal: Localiser = "nln"
    dal_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    jigsaw: Literal["patches", "pixels"] = "patches"
    level: Literal["tokens", "image"] = "tokens"
    patch: Annotated[int, Field(ge=1)] = 16
    per: Literal["image", "batch"] = "image"
    share: Annotated[float, Field(ge=0, le=1)] = 1.0

    name: ClassVar[str] = "mjp"
    summary: ClassVar[str] = "shuffles a share of the patches and hides their positions"
    paper: ClassVar[str] = "Ren et al. 2023 (MJP)"
    headline: ClassVar[tuple[str, ...]] = ("gamma",)
    paper_attacks: ClassVar[tuple[str, ...]] = ("april",)

    def misfits(self, model: nn.Module) -> list[str]:
        if self.level == "image":
            return []
        found = self.anatomy(model)
        return [f"{found}; mjp(level='image') shuffles the image itself"] * isinstance(found, str)

    def anatomy(self, model: nn.Module) -> tuple[Shape, PatchEmbedding] | str:
        """The model's images and position embedding, or why it cannot be protected."""
        shape = input_shape(model)
        if shape is None:
            return (
                "it does not say which images it takes, as vision transformers do by "
                "`image_size` or `patch_embed.img_size`"
            )
        found = position_embedding(model, shape)
        if isinstance(found, str):
            return found
        if not found.entrance.in_rows(shape):
            return "its patches do not make a regular grid"
        if model.get_parameter(found.position).ndim not in (2, 3):
            return f"its position embedding {found.position!r} is not a table of rows"
        return shape, found

    def caveats(self, model: nn.Module) -> list[str]:
        found = None if self.level == "image" else self.anatomy(model)
        if found is None or isinstance(found, str) or self.jigsaw == "pixels" or not self.gamma:
            return []
        shape, embedding = found
        patches = embedding.entrance.tokens
        if math.floor(patches * self.gamma + 1e-9) == 0:
            return [f"mjp covers nothing: {self.gamma:g} of {patches} patches is less than one"]
        grid = self.rules(embedding.entrance.patch(shape)).grid(torch.empty(shape))
        if not block_masks(64, grid, self.gamma, generator=generator(0, "caveats")).any():
            return [f"mjp covers nothing: no block fits into {grid[0]} x {grid[1]} patches"]
        return []

    def prepared(self, model: nn.Module) -> nn.Module:
        """The model with the unknown position and the localiser that server and clients share."""
        if isinstance(model, Jigsaw):
            return self.laid_anew(model)
        self.validate(model)
        if self.level == "image":
            return with_puzzle(model, self.rules((self.patch, self.patch)), positions="own")
        found = self.anatomy(model)
        assert not isinstance(found, str)
        shape, embedding = found
        return with_puzzle(
            model,
            self.rules(embedding.entrance.patch(shape)),
            embedding=embedding,
            shape=shape,
            positions=self.positions,
            localiser=self.dal,
        )

    def rules(self, patch: tuple[int, int]) -> Rules:
        return Rules(
            gamma=self.gamma,
            patch=patch,
            alike=self.per == "batch",
            pixels=self.jigsaw == "pixels",
            share=self.share,
        )

    def laid_anew(self, model: Jigsaw) -> nn.Module:
        """A model that was prepared before: as it is, or a copy by these rules."""
        board = model.puzzle
        level = "image" if board.embedding is None else "tokens"
        same = (level, board.positions, board.localiser) == (self.level, self.positions, self.dal)
        if not (same or level == self.level == "image"):
            raise DoesNotFit(
                "the model was prepared for another variant of mjp: give it the plain one"
            )
        rules = self.rules((self.patch, self.patch) if level == "image" else board.rules.patch)
        if rules == board.rules:
            return model
        made = copy.deepcopy(model)
        made.puzzle.rules = rules
        return made

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        made = self.prepared(model)
        if side is not None:
            side.record(gamma=self.gamma)
        return copy.deepcopy(model) if made is model else made

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        """The gradient of cross-entropy and localisation; None where nothing is localised."""
        if not isinstance(model, Jigsaw) or model.puzzle.localiser == "none":
            return None
        weights = list(model.parameters())
        loss = F.cross_entropy(model(inputs), labels)
        found = torch.autograd.grad(
            loss + self.dal_weight * model.localisation_loss(), weights, materialize_grads=True
        )
        return list(found)


VARIANTS: dict[str, Mjp] = {
    "A": Mjp(gamma=0, positions="own", dal="none"),
    "B": Mjp(gamma=0, positions="none", dal="none"),
    "C": Mjp(gamma=0, positions="own", dal="none", jigsaw="pixels"),
    "D": Mjp(gamma=0, positions="own", dal="nln"),
    "E": Mjp(positions="own", dal="none"),
    "F": Mjp(positions="index", dal="none"),
    "G": Mjp(dal="none"),
    "H": Mjp(dal="pca"),
    "I": Mjp(dal="ln"),
    "J": Mjp(),
}
"""The rows of the paper's Table 2, from DeiT as it is (A) to MJP as published (J)."""
