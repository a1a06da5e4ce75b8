# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .covered import coverage as coverage
from .errata import Erratum as Erratum, errata as errata
from .errors import CourseError as CourseError
from .file import Chapter as Chapter, Course as Course, load as load
from .headers import appendix_header as appendix_header, header as header
from .words import glossary as glossary, notation as notation
