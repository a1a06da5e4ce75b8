"""Ways to move a message between two ranks."""
