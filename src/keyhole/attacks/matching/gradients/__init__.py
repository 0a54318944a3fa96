"""How the gradients of many victims are computed and compared with their targets."""
