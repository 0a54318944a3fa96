"""Trains the networks whose position embeddings ship with the study of MJP (its Figures 3 and 7).

    python tools/train_positions.py OUT.safetensors --data-dir DATA --device cuda

The shipped file, results/mjp/positions.safetensors, is of the networks of the study's own results.
Networks that ``keyhole study mjp`` has trained are not trained again. See tools/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from keyhole.atomic import write_tensors
from keyhole.cli import show_progress
from keyhole.errors import KeyholeError
from keyhole_studies import load_study
from keyhole_studies.base import StudyContext
from keyhole_studies.mjp.evaluation import read_positions
from keyhole_studies.mjp.experiments import TrainingExperiment

STUDY = load_study("mjp")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains networks for their position embeddings.")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    parser.add_argument("--data-dir", help="the folder of CIFAR-10")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    runs = Path("runs/study-mjp")
    parser.add_argument("--runs", type=Path, default=runs, help=f"of weights; default: {runs}")
    parser.add_argument("--epochs", type=int, help="so many of each network, for a trial")
    return parser.parse_args(argv)


def find_experiments(epochs: int | None) -> Iterator[TrainingExperiment]:
    """The experiments that train the networks of the study's figures."""
    for name in STUDY.labels["figures"]:
        experiment = STUDY.find(name)
        assert isinstance(experiment, TrainingExperiment)
        if epochs is not None:
            settings = replace(experiment.settings, epochs=epochs)
            experiment = replace(experiment, settings=settings)
        yield experiment


def make_table(experiment: TrainingExperiment, context: StudyContext) -> Tensor:
    """The position embeddings of a network's patches, ``[N, D]``, float16."""
    if not experiment.weights_file(context.runs).is_file():
        experiment.train(STUDY, context)
    return read_positions(experiment.load_trained(STUDY.seed, context.runs)).half()


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    try:
        with show_progress() as progress:
            context = StudyContext(
                runs=arguments.runs,
                data_dir=arguments.data_dir,
                device=arguments.device,
                progress=progress,
            )
            experiments = find_experiments(arguments.epochs)
            tables = {e.name: make_table(e, context) for e in experiments}
        write_tensors(arguments.out, tables)
    except KeyholeError as error:
        sys.exit(str(error))
    print(f"{', '.join(tables)}: {arguments.out}")


if __name__ == "__main__":
    main()
