"""Models as Python: tensors and what is done with them."""
