"""Texts as tokens and back, and conversations as texts, from what a GGUF file says.

``vocabulary`` reads and checks the metadata, ``encoding`` makes a tokenizer of it, ``chat`` renders
its template, which is a program of a stranger.
"""
