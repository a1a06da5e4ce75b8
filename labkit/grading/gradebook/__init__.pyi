# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .errors import PolicyError as PolicyError
from .options import GradebookOptions as GradebookOptions, read_options as read_options
from .policy import Accommodation as Accommodation, read_accommodations as read_accommodations
from .writing import Written as Written, write as write
