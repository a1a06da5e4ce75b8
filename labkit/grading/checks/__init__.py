"""What a check is: it runs a student's work on real ranks, and marks results and evidence with a sentence.

exercises.py   `open_exercises`: define checks, run those of an exercise, show the marks
student.py     `Student`, the only door from a check to a student's work, and `Evidence`, what a run left
notebook.py    that door in a student's own notebook: functions of the notebook, ranks by labkit.launch
judge.py       runs checks against a student and makes marks of what they say
marks.py       `Mark`, `Outcome`, the states, and the record that is kept of them
fresh.py       inputs that are new in every run and repeatable from its seed
rounds.py      how many messages had to follow one another
data.py        what may travel between a check and a student's work
wording.py     failures of a run, and differences of results, in sentences
show.py        marks as HTML and text
zoo.py         wrong and right answers that prove the checks
"""
