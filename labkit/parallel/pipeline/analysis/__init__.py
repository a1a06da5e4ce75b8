"""A schedule without a process: is it complete, can it run, how long does it take, what does it keep?"""
