"""Texts as tokens and back, and conversations as texts.

``tokenizer`` is a tokenizer as data, and its file; ``gguf`` and ``folder`` make it of what models
come with, ``sources`` finds it. ``encoding`` runs one, ``chat`` renders its template, which is a
program of a stranger.
"""
