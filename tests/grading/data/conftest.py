"""The notebooks here are read by tests; they are not tests themselves."""

collect_ignore_glob = ["*.ipynb"]
