"""A look from inside at whether the walls stand: run in each tier before it is trusted, with harmless attempts."""

from __future__ import annotations

SOURCE = '''
def attempts(canary, grader):
    """The names of what should have failed and did not."""
    import ctypes, os, socket

    def reads():
        with open(canary) as f:
            f.read(1)

    def writes():
        with open(canary, "a"):
            pass

    def forks():
        if os.fork() == 0:
            os._exit(0)

    def signals():
        os.kill(grader, 0)

    def executes():
        os.execv("/bin/true", ["true"])

    def traces():
        if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) < 0:
            raise OSError

    def listens():
        socket.socket(socket.AF_UNIX)

    def connects():
        socket.socket(socket.AF_INET)

    def sees():
        os.listdir(f"/proc/{grader}/fd")

    done = []
    for attempt in (reads, writes, forks, signals, traces, listens, connects, sees, executes):
        try:
            attempt()
            done.append(attempt.__name__)
        except OSError:
            pass
    return done


def works():
    """What must work: files at home, threads, a module that nothing has loaded yet."""
    import colorsys, os, threading
    with open("file", "w") as f:
        f.write("text")
    thread = threading.Thread(target=os.getpid)
    thread.start()
    thread.join()
    return True
'''
