"""`labkit html`: chapters as static pages."""
