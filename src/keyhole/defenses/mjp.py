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
from keyhole.defenses.capabilities import HiddenPositions
from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import PatchEmbedding, Shape, find_position_embedding, input_shape
from keyhole.models.block_masks import block_masks
from keyhole.models.jigsaw import Jigsaw, add_puzzle
from keyhole.models.puzzle import PuzzleRules
from keyhole.models.puzzle_module import Localiser, Positions
from keyhole.seeds import generator


@dataclass(frozen=True, kw_only=True)
class Mjp(Defense):
    """Covers a share ``gamma`` of the patches of every training image, block by block.

    Covered patches change places among themselves; in place of their position embeddings they
    get one ``unknown`` that all share. A localiser learns to read known positions off their
    embeddings (DAL). ``positions``, ``dal`` and ``jigsaw`` also make the variants of the paper's
    Table 2. ``per='batch'`` and ``share=0.5`` are the settings of the authors' code.

    Args:
        gamma: The share of patches that are covered.
        positions: The position embedding of a covered patch: ``unknown``, one that all share;
            ``own``, that of its slot; ``index``, its slot's plus one for its index; or ``none``.
        dal: The localiser: ``nln``, ``ln``, ``pca`` or ``none``.
        dal_weight: The factor of the localiser's loss.
        jigsaw: ``patches`` moves the covered patches; ``pixels`` moves all patches, and the pixels
            inside them.
        level: ``tokens`` shuffles patch embeddings. ``image`` shuffles squares of the image, before
            any network and without positions and localiser, as the paper does with Swin and ResNet.
        patch: The side of those squares in pixels.
        per: Whether each ``image`` or each ``batch`` gets a puzzle of its own.
        share: The share of training batches that become puzzles.
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

    def incompatibilities(self, model: nn.Module) -> list[str]:
        if self.level == "image":
            return []
        found = self._find_embedding(model)
        return [f"{found}; mjp(level='image') shuffles the image itself"] * isinstance(found, str)

    def _find_embedding(self, model: nn.Module) -> tuple[Shape, PatchEmbedding] | str:
        """The shape of the model's images and its embedding, or why it cannot be protected."""
        shape = input_shape(model)
        if shape is None:
            return (
                "it does not say which images it takes, as vision transformers do by "
                "`image_size` or `patch_embed.img_size`"
            )
        found = find_position_embedding(model, shape)
        if isinstance(found, str):
            return found
        if not found.input_layer.is_regular_grid(shape):
            return "its patches do not make a regular grid"
        if model.get_parameter(found.position).ndim not in (2, 3):
            return f"its position embedding {found.position!r} is not a table of rows"
        return shape, found

    def caveats(self, model: nn.Module) -> list[str]:
        found = None if self.level == "image" else self._find_embedding(model)
        if found is None or isinstance(found, str) or self.jigsaw == "pixels" or not self.gamma:
            return []
        shape, embedding = found
        patches = embedding.input_layer.tokens
        if math.floor(patches * self.gamma + 1e-9) == 0:
            return [f"mjp covers nothing: {self.gamma:g} of {patches} patches is less than one"]
        grid = self._build_rules(embedding.input_layer.patch_size(shape)).grid(torch.empty(shape))
        if not block_masks(64, grid, self.gamma, generator=generator(0, "caveats")).any():
            return [f"mjp covers nothing: no block fits into {grid[0]} x {grid[1]} patches"]
        return []

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """The model with the unknown position and the localiser that server and clients share."""
        if isinstance(model, Jigsaw):
            return self._replace_rules(model)
        self.validate(model)
        if self.level == "image":
            return add_puzzle(model, self._build_rules((self.patch, self.patch)), positions="own")
        found = self._find_embedding(model)
        assert not isinstance(found, str)
        shape, embedding = found
        return add_puzzle(
            model,
            self._build_rules(embedding.input_layer.patch_size(shape)),
            embedding=embedding,
            shape=shape,
            positions=self.positions,
            localiser=self.dal,
        )

    def _build_rules(self, patch: tuple[int, int]) -> PuzzleRules:
        return PuzzleRules(
            gamma=self.gamma,
            patch=patch,
            alike=self.per == "batch",
            pixels=self.jigsaw == "pixels",
            share=self.share,
        )

    def _replace_rules(self, model: Jigsaw) -> nn.Module:
        """A model that was prepared before: itself, or a copy with this defense's rules."""
        puzzle = model.puzzle
        level = "image" if puzzle.embedding is None else "tokens"
        same = (level, puzzle.positions, puzzle.localiser) == (self.level, self.positions, self.dal)
        if not (same or level == self.level == "image"):
            raise DoesNotFit(
                "the model was prepared for another variant of mjp: give it the plain one"
            )
        patch = (self.patch, self.patch) if level == "image" else puzzle.rules.patch
        rules = self._build_rules(patch)
        if rules == puzzle.rules:
            return model
        prepared = copy.deepcopy(model)
        prepared.puzzle.rules = rules
        return prepared

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        prepared = self.prepare_model(model)
        if side is not None:
            side.record(gamma=self.gamma)
        return copy.deepcopy(model) if prepared is model else prepared

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

    def hidden_positions(self) -> HiddenPositions | None:
        """None for the variants in which every patch has its own position, or none has one."""
        if self.positions != "unknown" or self.level != "tokens":
            return None
        return HiddenPositions(self.dal_weight)
