"""What is wrong in a file that an instructor wrote: said with the file, the entry and the remedy."""

from __future__ import annotations


class PolicyError(ValueError):
    """A file of accommodations, overrides or marks cannot be used. The text names the place and the remedy."""
