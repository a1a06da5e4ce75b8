"""What checks compare programs with, a file a chapter: right results computed on one rank, and fresh inputs."""
