"""What a chapter shows."""
