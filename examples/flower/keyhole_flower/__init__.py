"""A Flower app whose server is curious."""
