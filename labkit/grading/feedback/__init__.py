"""Pages that say what became of a submission: one for each student, and one of the class for the instructor.

pages.py       what is said on both; templates/: how, with all markup; wording.py: states and evidence in words
statistics.py  what the class found hard
folder.py      all of them in a folder

A page is one file: nothing from the network, no script. What a student wrote is text on it, whatever it was.
"""
