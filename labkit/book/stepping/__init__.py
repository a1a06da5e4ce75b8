"""Stepping through a recorded collective."""
