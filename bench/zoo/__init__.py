"""Operators and networks as people have them: torch modules, handed to every peer as ONNX."""
