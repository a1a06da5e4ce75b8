"""What strategies refuse, and how all ranks refuse it together.

    agreement.py      what one rank refuses, all ranks refuse, with the same words
    same_model.py     the same model on every rank: checked by what it is, and made so by what it holds
    changed_model.py  a model that was changed after it was wrapped, or cannot be wrapped
    gradients.py      gradients that must not be used, or never came

What is said of one strategy's own options stands with it.
"""
