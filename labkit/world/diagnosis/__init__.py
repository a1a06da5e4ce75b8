"""What went wrong with a world, read from the status pages: who waits for whom, who disagrees, who is to blame."""
