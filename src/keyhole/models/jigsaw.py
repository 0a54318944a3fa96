"""Any network with a jigsaw puzzle before it, and any ViT with an unknown position embedding.

:func:`with_puzzle` gives a copy of a model a class that is derived from its own: it stays a timm
(or any other) model with all its methods and the names of its parameters, and gets one more child,
``puzzle``. In training its images become puzzles; in evaluation it takes plain images. Positions of
covered patches are replaced while the model runs, by a table ``[B, N + prefix, D]`` in the place of
its position embedding ``[1, N + prefix, D]``, so that no layer has to be known.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import PatchEmbedding, Shape
from keyhole.models.puzzle import Dealer, Puzzle, Rules, lay, shuffled, solved
from keyhole.seeds import derive, generator, seeded_globally

Positions = Literal["unknown", "own", "index", "none"]
Localiser = Literal["nln", "ln", "pca", "none"]

PCA_TURNS = 5
CHILD = "puzzle"
"""The name of the child that a model gets."""


class Board(nn.Module):
    """What a puzzle adds to a model: the unknown position, an index table, a localiser.

    ``positions`` of a covered patch are ``unknown`` (one row shared by all), its ``own`` slot's,
    its slot's plus one that tells the patch's ``index``, or there are ``none`` at all.
    ``places [N, 2]`` are the patches' rows and columns.
    """

    places: Tensor

    def __init__(
        self,
        rules: Rules,
        embedding: PatchEmbedding | None,
        shape: Shape | None,
        table: Tensor | None,
        positions: Positions,
        localiser: Localiser,
    ) -> None:
        super().__init__()
        self.rules = rules
        self.embedding = embedding
        self.positions: Positions = positions
        self.localiser: Localiser = localiser
        self.answer: Puzzle | None = None
        """A puzzle to be laid in place of a drawn one."""
        self.dealer = Dealer()
        self.playing = False
        """Whether a forward pass is under way, so that a method within it lays no other puzzle."""
        self.uncovered: Tensor | None = None
        """How often each position was known in the last training batch, ``[N]``."""
        if embedding is None or table is None or shape is None:
            return
        cells = places(shape, rules.patch).to(table.device)
        self.register_buffer("places", cells, persistent=False)
        width, spread = table.shape[-1], float(table.detach().float().std())
        draw = generator(0, "unknown position")
        if positions == "unknown":
            self.unknown = nn.Parameter(torch.randn(1, 1, width, generator=draw).to(table) * spread)
        if positions == "index":
            index = torch.randn(1, embedding.entrance.tokens, width, generator=draw)
            self.index = nn.Parameter(index.to(table) * spread)
        if localiser in ("ln", "nln"):
            with seeded_globally(derive(0, "localiser")):
                self.head = localising_head(localiser, width).to(table)

    def __getstate__(self) -> dict[str, Any]:
        """A copy knows nothing of the puzzles that were laid."""
        return {**self.__dict__, "uncovered": None, "answer": None, "playing": False}

    def table(self, own: Tensor, puzzle: Puzzle) -> Tensor:
        """The positions of a batch, ``[B, rows, D]``, from the model's own ``[1, rows, D]``."""
        if self.positions == "none":
            return own - own.detach()  # nought, and yet its gradient is shared
        if self.positions == "own":
            return own
        own = own if own.ndim == 3 else own[None]
        before, patches, after = self.rows(own)
        if self.positions == "unknown":
            kept = puzzle.kept[..., None]
            patches = kept * patches + (1 - kept) * self.unknown
        else:
            patches = patches + (
                self.index if puzzle.order is None else self.index[0][puzzle.order]
            )
        around = [t.expand(len(patches), -1, -1) for t in (before, after)]
        return torch.cat([around[0], patches, around[1]], dim=-2)

    def rows(self, own: Tensor) -> tuple[Tensor, ...]:
        """A position table ``[..., rows, D]`` before, at and after the patches."""
        assert self.embedding is not None
        first, patches = self.embedding.offset, self.embedding.entrance.tokens
        return torch.split(own, [first, patches, own.shape[-2] - first - patches], -2)

    def localisation(self, own: Tensor) -> Tensor:
        """DAL: the mean L1 distance of the guessed from the true row and column (scalar).

        Over the positions that were known in the last training batch, as often as they were.
        """
        patches = self.rows(own)[1].reshape(-1, own.shape[-1])
        seen = patches.new_ones(len(patches)) if self.uncovered is None else self.uncovered
        if self.localiser == "pca":
            known = patches[seen.to(patches) > 0]
            if len(known) < 3:  # fewer points make no plane
                return own.sum() * 0
            _, _, directions = torch.pca_lowrank(known, q=2, niter=PCA_TURNS)
            guessed = (patches - known.mean(0)) @ directions
        else:
            guessed = self.head(patches)
        off = (guessed - self.places).abs().mean(1)
        seen = seen.to(off)
        return (off * seen).sum() / seen.sum().clamp(min=1)


def places(shape: Shape, patch: tuple[int, int]) -> Tensor:
    """Row and column of every patch, ``[N, 2]``."""
    rows, columns = (torch.arange(side // of) for side, of in zip(shape[1:], patch, strict=True))
    return torch.cartesian_prod(rows, columns)


def localising_head(kind: Localiser, width: int) -> nn.Module:
    """From a position's embedding to its row and column."""
    if kind == "ln":
        return nn.Linear(width, 2)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


class Jigsaw(nn.Module):
    """What a model's class is given in front: see the module's text."""

    puzzle: Board

    def localisation_loss(self) -> Tensor:
        """DAL for the last training batch, to be added to the loss; 0 without a localiser."""
        board = self.puzzle
        if board.localiser == "none":
            return next(self.parameters()).new_zeros(())
        return board.localisation(self.get_parameter(self._position))

    @contextmanager
    def given(self, puzzle: Puzzle | None) -> Iterator[None]:
        """While this lasts every batch becomes ``puzzle``, in evaluation as well."""
        before, self.puzzle.answer = self.puzzle.answer, puzzle
        try:
            yield
        finally:
            self.puzzle.answer = before

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled and copied by way of its own class, which can be found by name."""
        return unpickled, (type(self).__bases__[1],), self.__dict__.copy()

    @property
    def _position(self) -> str:
        assert self.puzzle.embedding is not None
        return self.puzzle.embedding.position

    def _play(self, run: Callable[..., Any], images: Tensor, args: Any, options: Any) -> Any:
        """Runs a method of the model's own class on the puzzle that ``images`` become."""
        board = self.puzzle
        if board.playing:
            return run(images, *args, **options)
        puzzle = self._puzzle(images)
        if puzzle is None:
            return run(images, *args, **options)
        board.playing = True
        try:
            with self._positions(puzzle):
                return run(shuffled(images, puzzle, board.rules), *args, **options)
        finally:
            board.playing = False

    def _puzzle(self, images: Tensor) -> Puzzle | None:
        board = self.puzzle
        if board.answer is not None:
            return board.answer
        if self.training and not board.rules.idle:
            name = self._position if board.positions == "unknown" else None
            puzzle = lay(images, board.rules, name, board.dealer)
            known = None if puzzle.order is None else puzzle.kept.detach().sum(0)
            board.uncovered = known
            return puzzle
        if board.positions in ("none", "index"):
            return solved(images, board.rules)
        return None

    @contextmanager
    def _positions(self, puzzle: Puzzle) -> Iterator[None]:
        """Puts the batch's table in the place of the position embedding while the model runs."""
        board = self.puzzle
        if board.embedding is None or board.positions == "own":
            yield
            return
        path, _, name = board.embedding.position.rpartition(".")
        held = self.get_submodule(path)._parameters
        own = held[name]
        assert own is not None
        held[name] = cast(nn.Parameter, board.table(own, puzzle))
        try:
            yield
        finally:
            held[name] = own


def jigsaw_class(base: type[nn.Module]) -> type[nn.Module]:
    """``base`` with a puzzle before its forward pass, and before ``forward_features`` if any."""
    if base in _classes:
        return _classes[base]

    def before(name: str) -> Callable[..., Any]:
        own = getattr(base, name)

        first = next(iter(inspect.signature(own.__get__(object())).parameters), "")

        def played(self: Jigsaw, *args: Any, **options: Any) -> Any:
            images = args[0] if args else options.pop(first)
            return self._play(own.__get__(self), images, args[1:], options)

        played.__name__ = name
        played.__doc__ = own.__doc__
        return played

    entries = [n for n in ("forward", "forward_features") if hasattr(base, n)]
    methods: dict[str, Any] = {name: before(name) for name in entries}
    made = type(f"Jigsaw{base.__name__}", (Jigsaw, base), {**methods, "__module__": __name__})
    return _classes.setdefault(base, made)


def unpickled(base: type[nn.Module]) -> nn.Module:
    """A model of ``base`` with a puzzle, without its state."""
    return jigsaw_class(base).__new__(jigsaw_class(base))


_classes: dict[type[nn.Module], type[nn.Module]] = {}


def with_puzzle(
    model: nn.Module,
    rules: Rules,
    *,
    embedding: PatchEmbedding | None = None,
    shape: Shape | None = None,
    positions: Positions = "unknown",
    localiser: Localiser = "none",
) -> nn.Module:
    """A copy of ``model`` that trains on puzzles; its parameters start as the model's own.

    Without an ``embedding`` only the image is shuffled; with one, ``shape`` is the images'.
    """
    if has_puzzle(model):
        raise DoesNotFit("the model has a puzzle already")
    made = copy.deepcopy(model)
    table = None if embedding is None else made.get_parameter(embedding.position)
    made.puzzle = Board(rules, embedding, shape, table, positions, localiser)
    made.__class__ = jigsaw_class(type(model))
    return made


def has_puzzle(model: nn.Module) -> bool:
    return isinstance(model, Jigsaw)
