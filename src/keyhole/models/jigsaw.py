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
from typing import Any, cast

from torch import Tensor, nn

from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import PatchEmbedding, Shape
from keyhole.models.board import Board, Localiser, Positions
from keyhole.models.puzzle import Puzzle, Rules, lay, shuffled, solved

CHILD = "puzzle"
"""The name of the child that a model gets."""


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
