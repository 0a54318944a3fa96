"""How the generator that ships with ``gifd`` is trained: a class-conditional GAN."""

from keyhole_studies.generator_training.adversarial_training import (
    GeneratorSettings,
    TrainedGenerator,
    train_generator,
)

__all__ = ["GeneratorSettings", "TrainedGenerator", "train_generator"]
