"""Wrong versions of what chapter 2 asks its reader to write: words of the sentence that must reject each."""

WRONG = {
    "whisper": {
        "def whisper(text, group, source, to):\n    return text": "nothing was received",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(encode(text), to)
            if group.rank == to:
                return decode(group.recv(torch.zeros(56, dtype=torch.uint8), source))
            return text
        """: "but rank 1 receives uint8[56]",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                words = torch.zeros(100, dtype=torch.uint8)
                words[: len(text)] = encode(text)
                group.send(words, to)
            if group.rank == to:
                text = decode(group.recv(torch.zeros(100, dtype=torch.uint8), source)).strip(chr(0))
            return text
        """: "rank 0 sent 100 bytes for it; a length of 8 bytes and the text are 38",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(torch.tensor([len(text)]), to)
                group.send(encode(text), to)
            if group.rank == to:
                length = group.recv(torch.zeros(1, dtype=torch.int64), source)
                return decode(group.recv(torch.zeros(int(length), dtype=torch.uint8), source))
            return text
        """: "it has more bytes than letters",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(torch.tensor([len(text)]), to)
                group.send(encode(text), to)
            else:
                length = group.recv(torch.zeros(1, dtype=torch.int64), source)
                return group.recv(torch.zeros(int(length), dtype=torch.uint8), source)
            return text
        """: "`decode` makes one of the bytes",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(torch.tensor([len(text)]), to)
                group.send(encode(text), to)
            if group.rank == to:
                length = group.recv(torch.zeros(1, dtype=torch.int64), source)
                return decode(group.recv(torch.zeros(int(length), dtype=torch.uint8), source))
        """: "must return their own text",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(torch.tensor([len(encode(text))]), to)
                group.send(encode(text), to)
            else:
                length = group.recv(torch.zeros(1, dtype=torch.int64), source)
                return decode(group.recv(torch.zeros(int(length), dtype=torch.uint8), source))
            return text
        """: "rank 1 also receives: only rank 0, which is `to`, has anything to receive",
    },
    "pass_right": {
        "def pass_right(mine, group):\n    return mine": "return the one that came from the left",
        """
        def pass_right(mine, group):
            theirs = torch.empty_like(mine)
            group.send(mine, to=(group.rank + 1) % group.size)
            return group.recv(theirs, source=(group.rank - 1) % group.size)
        """: "ranks 0 and 1 wait for each other",
        """
        def pass_right(mine, group):
            theirs, left, right = torch.empty_like(mine), (group.rank - 1) % group.size, (group.rank + 1) % group.size
            if group.rank % 2:
                group.recv(theirs, source=right)
                group.send(mine, to=left)
            else:
                group.send(mine, to=left)
                group.recv(theirs, source=right)
            return theirs
        """: "send to the right, and receive from the left",
        """
        def pass_right(mine, group):
            theirs = [torch.empty_like(mine) for _ in range(group.size)]
            for r in range(group.size):
                for to in range(group.size):
                    if r != to:
                        group.send(mine, to=to) if group.rank == r else None
                        group.recv(theirs[r], source=r) if group.rank == to else None
            return theirs[(group.rank - 1) % group.size]
        """: "With 4 ranks rank 0 sent 3 messages, and 1 is enough",
        """
        def pass_right(mine, group):
            theirs, left, right = torch.empty_like(mine), (group.rank - 1) % group.size, (group.rank + 1) % group.size
            return group.exchange(mine, to=right, like=theirs, source=left)
        """: "all ranks send and receive at once",
        """
        def pass_right(mine, group):
            left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
            if group.rank == 0:
                group.recv(mine, source=left)
                group.send(mine, to=right)
                return mine
            group.send(mine, to=right)
            return group.recv(torch.empty_like(mine), source=left)
        """: "You overwrote `mine` before you sent it",
        """
        def pass_right(mine, group):
            left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
            if group.rank % 2:
                group.recv(mine, source=left)
                group.send(mine, to=right)
                return mine
            group.send(mine, to=right)
            return group.recv(mine, source=left)
        """: "You overwrote `mine` before you sent it",
        """
        def pass_right(mine, group):
            left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
            if group.rank % 2:
                group.send(mine, to=right)
                return group.recv(mine, source=left)
            theirs = group.recv(torch.empty_like(mine), source=left)
            group.send(mine, to=right)
            return theirs
        """: "what came was written over a `mine`",
    },
}
