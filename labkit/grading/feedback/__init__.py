"""Pages that say what became of a submission: one for each student, and one of the class for the instructor.

html.py        elements from escaped text; style.py: their look; wording.py: states and evidence in words
student.py     the page of a student
index.py       the page of the class; statistics.py: what the class found hard
folder.py      all of them in a folder

A page is one file: nothing from the network, no script. What a student wrote is text on it, whatever it was.
"""
