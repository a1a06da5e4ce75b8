"""What every rank writes down before it does it, and what is made of that after a run: the `Trace`."""
