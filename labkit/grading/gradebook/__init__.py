"""From results to a gradebook: what people decided is added to what checks found, and written for people and programs.

    options = read_options(accommodations=..., overrides=..., rubric=..., deadline=...)    # refuses in words
    written = write(out, results, options)
    print(written.summary)

rows.py       the gradebook: students, notebooks, exercises; book.py makes it
policy.py     deadlines, lateness, accommodations
overrides.py  points that an instructor sets; rubric.py: free responses that a person marks; names.py: pseudonyms
weights.py    what chapters count in the course
kept.py       results of other chapters, from earlier runs
tables.py     grades.csv; report.py: grades.json; junit.py: junit.xml; changes.py: changes.csv, changes.txt
sheets.py     CSV that a spreadsheet cannot take for formulas; text.py, files.py: small things
writing.py    all of it

What a person decides is stronger than what a check found: an override over a mark by hand over a check.

Names load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
