"""Alignment: a language model that is trained on what people prefer, as a fleet of ranks."""
