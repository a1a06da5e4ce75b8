"""What the commands of `labkit` do, a file each; `labkit.cli` only reads the command line."""


class UsageError(Exception):
    """The person typed something that cannot be. The message names the value and the remedy."""
