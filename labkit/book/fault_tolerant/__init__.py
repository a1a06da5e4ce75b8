"""A run that goes on when ranks are lost: its story, its picture, a live view."""
