"""What a reader is asked and told in a chapter: predictions, quizzes, conclusions, records, the end."""
