# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .checks.exercises import Exercises as Exercises, open_exercises as open_exercises
