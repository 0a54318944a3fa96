"""The options that say where work runs: here, on Ray, or one shard of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole.errors import BadValue

if TYPE_CHECKING:
    from keyhole.scale import Machine, PieceStore
    from keyhole.scale.outcome import Place

LOCAL, RAY = "local", "ray"

On = Annotated[str, typer.Option("--on", help="Where pieces run: local or ray.")]
Address = Annotated[
    str | None, typer.Option(help="Ray's address; default: RAY_ADDRESS, or this machine.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes on this machine, for plans in pieces.")
]
CpusPerPiece = Annotated[int, typer.Option(min=1, help="Threads of each piece.")]
GpusPerPiece = Annotated[float, typer.Option(min=0, help="GPUs of each piece, for --on ray.")]
Pieces = Annotated[
    str | None,
    typer.Option(help="Folder or URL of pieces' results; default: pieces/ beside the run."),
]
ShardOption = Annotated[
    str | None, typer.Option("--shard", metavar="3/16", help="Run only this part of the plan.")
]


@dataclass(frozen=True)
class PlaceRequest:
    """Where the user wants pieces to run.

    Args:
        on: ``local`` or ``ray``.
        address: The address of Ray.
        workers: Processes on this machine; None: this one.
        cpus: Threads of each piece.
        gpus: GPUs of each piece.
        pieces: Where pieces keep their results; None: beside the run folder.
    """

    on: str = LOCAL
    address: str | None = None
    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    pieces: str | None = None

    def __post_init__(self) -> None:
        if self.on not in (LOCAL, RAY):
            raise BadValue(f"on: choose local or ray, got {self.on!r}")
        for name, given in (("address", self.address), ("gpus-per-piece", self.gpus)):
            if given and self.on != RAY:
                raise BadValue(f"{name}: it is for Ray: add --on ray")
        if not (self.gpus == round(self.gpus, 4) <= 1 or self.gpus.is_integer()):
            raise BadValue(
                f"gpus-per-piece: write a share of one, such as 0.25, or a whole number, got "
                f"{self.gpus:g}"
            )
        if self.workers is not None and self.on == RAY:
            raise BadValue("workers: Ray decides how many there are: leave it out")

    @property
    def asked(self) -> bool:
        """Whether the user asked for pieces, though the plan has no lists."""
        return self.on == RAY or self.workers is not None or self.pieces is not None

    def make_place(self) -> Place:
        """The place; checks that it can be used."""
        if self.on == RAY:
            from keyhole.scale.on_ray import Ray, import_ray

            import_ray()
            return Ray(self.address)
        from keyhole.scale.local import Local

        return Local(self.workers or 1)

    def make_machine(
        self, device: str, data_dir: str | None, victims_at_once: int | None = None
    ) -> Machine:
        """What each piece may use.

        Args:
            device: ``auto``, or a device of torch.
            data_dir: Where data sets lie; None: the default places.
            victims_at_once: How many victims an attack may take at once; None: as many as fit.
        """
        from keyhole.scale.piece import Machine

        return Machine(device, data_dir, self.cpus, self.gpus, victims_at_once)

    def open_store(self, run: Path) -> PieceStore:
        """Where pieces keep their results.

        Args:
            run: The run folder; pieces are beside it unless the user names another place.
        """
        from keyhole.scale.piece_store import open_store

        return open_store(self.pieces or run.parent / "pieces")
