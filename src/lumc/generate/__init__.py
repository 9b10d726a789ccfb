"""Texts that go on: a model that is given a text in parts, and what is chosen of its logits."""
