"""Any network with a jigsaw puzzle before it, and any ViT with an unknown position embedding.

:func:`add_puzzle` gives a copy of a model a class that is derived from its own: it stays a timm (or
any other) model with all its methods and parameter names, and gets one more child, ``puzzle``. In
training its images become puzzles; in evaluation it takes plain images. While the model runs, a
table ``[B, N + prefix, D]`` with the positions of the batch replaces its position embedding
``[1, N + prefix, D]``, so that no layer has to be known.
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
from keyhole.models.puzzle import Puzzle, PuzzleRules, apply_puzzle, draw_puzzle, solved_puzzle
from keyhole.models.puzzle_module import Localiser, Positions, PuzzleModule

CHILD_NAME = "puzzle"
"""The name of the child that a model gets."""


class Jigsaw(nn.Module):
    """The first base class of a model with a puzzle, which :func:`add_puzzle` makes.

    Args:
        *args: Those of the model's own class.
        **kwargs: Likewise.
    """

    puzzle: PuzzleModule

    def localisation_loss(self) -> Tensor:
        """Returns DAL of the last training batch, to add to the loss; 0 without a localiser."""
        module = self.puzzle
        if module.localiser == "none":
            return next(self.parameters()).new_zeros(())
        return module.localisation_loss(self.get_parameter(self._position))

    @contextmanager
    def use_puzzle(self, puzzle: Puzzle | None) -> Iterator[None]:
        """Turns every batch inside the block into ``puzzle``, in evaluation as well.

        Args:
            puzzle: The puzzle of each image of a batch; None means that the model draws them.
        """
        before, self.puzzle.fixed_puzzle = self.puzzle.fixed_puzzle, puzzle
        try:
            yield
        finally:
            self.puzzle.fixed_puzzle = before

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies by the model's own class, which can be found by name."""
        return make_without_state, (type(self).__bases__[1],), self.__dict__.copy()

    @property
    def _position(self) -> str:
        assert self.puzzle.embedding is not None
        return self.puzzle.embedding.position

    def _run_on_puzzle(
        self, run: Callable[..., Any], images: Tensor, args: Any, options: Any
    ) -> Any:
        """Runs a method of the model's own class on the puzzle that ``images`` become."""
        module = self.puzzle
        if module.in_forward:
            return run(images, *args, **options)
        puzzle = self._choose_puzzle(images)
        if puzzle is None:
            return run(images, *args, **options)
        module.in_forward = True
        try:
            with self._replaced_positions(puzzle):
                return run(apply_puzzle(images, puzzle, module.rules), *args, **options)
        finally:
            module.in_forward = False

    def _choose_puzzle(self, images: Tensor) -> Puzzle | None:
        module = self.puzzle
        if module.fixed_puzzle is not None:
            return module.fixed_puzzle
        if self.training and not module.rules.moves_nothing:
            name = self._position if module.positions == "unknown" else None
            puzzle = draw_puzzle(images, module.rules, name, module.pool)
            module.known_counts = None if puzzle.order is None else puzzle.kept.detach().sum(0)
            return puzzle
        if module.positions in ("none", "index"):
            return solved_puzzle(images, module.rules)
        return None

    @contextmanager
    def _replaced_positions(self, puzzle: Puzzle) -> Iterator[None]:
        """Puts the batch's table in the place of the position embedding inside the block."""
        module = self.puzzle
        if module.embedding is None or module.positions == "own":
            yield
            return
        path, _, name = module.embedding.position.rpartition(".")
        parameters = self.get_submodule(path)._parameters
        own = parameters[name]
        assert own is not None
        parameters[name] = cast(nn.Parameter, module.position_table(own, puzzle))
        try:
            yield
        finally:
            parameters[name] = own


def jigsaw_class(base: type[nn.Module]) -> type[nn.Module]:
    """Derives a class from ``base`` with a puzzle before ``forward`` and ``forward_features``."""
    if base in _classes:
        return _classes[base]

    def make_method(name: str) -> Callable[..., Any]:
        own = getattr(base, name)

        first = next(iter(inspect.signature(own.__get__(object())).parameters), "")

        def method(self: Jigsaw, *args: Any, **options: Any) -> Any:
            images = args[0] if args else options.pop(first)
            return self._run_on_puzzle(own.__get__(self), images, args[1:], options)

        method.__name__ = name
        method.__doc__ = own.__doc__
        return method

    names = [n for n in ("forward", "forward_features") if hasattr(base, n)]
    methods: dict[str, Any] = {name: make_method(name) for name in names}
    derived = type(f"Jigsaw{base.__name__}", (Jigsaw, base), {**methods, "__module__": __name__})
    return _classes.setdefault(base, derived)


def make_without_state(base: type[nn.Module]) -> nn.Module:
    """Returns an instance of ``base`` with a puzzle whose state unpickling will set."""
    return jigsaw_class(base).__new__(jigsaw_class(base))


_classes: dict[type[nn.Module], type[nn.Module]] = {}


def add_puzzle(
    model: nn.Module,
    rules: PuzzleRules,
    *,
    embedding: PatchEmbedding | None = None,
    shape: Shape | None = None,
    positions: Positions = "unknown",
    localiser: Localiser = "none",
) -> nn.Module:
    """Returns a copy of ``model`` that trains on puzzles, with the same parameters.

    Without an ``embedding`` only the images are shuffled; with one, ``shape`` is their shape.
    """
    if has_puzzle(model):
        raise DoesNotFit("the model has a puzzle already")
    result = copy.deepcopy(model)
    table = None if embedding is None else result.get_parameter(embedding.position)
    result.puzzle = PuzzleModule(rules, embedding, shape, table, positions, localiser)
    result.__class__ = jigsaw_class(type(model))
    return result


def has_puzzle(model: nn.Module) -> bool:
    return isinstance(model, Jigsaw)
