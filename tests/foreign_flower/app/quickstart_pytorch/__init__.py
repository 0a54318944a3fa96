"""quickstart-pytorch: A Flower / PyTorch app."""
