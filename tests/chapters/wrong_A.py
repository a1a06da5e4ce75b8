"""Wrong versions of what appendix A asks its reader to write: words of the sentence that must reject each."""


def held(one: str, two: str, three: str, state: int = 12, first: int = 1, sign: str = ">=", after: str = "") -> str:
    """`held_bytes`: which part is sharded first, second and third, and from which stage on."""
    return f"""
        def held_bytes(parameters, stage, ranks):
            weights, gradients, optimizer = 2 * parameters, 2 * parameters, {state} * parameters
            if stage {sign} {first}:
                {one} /= ranks
            if stage {sign} {first + 1}:
                {two} /= ranks
            if stage {sign} {first + 2}:
                {three} /= ranks
            return (weights + gradients + optimizer) {after}
    """


WRONG = {
    "agrees": {
        "def agrees(said, found):\n    pass": "Return True or False",
        "def agrees(said, found):\n    return said": "Return True or False",
        "def agrees(said, found):\n    return float(said) == found": "your function says that they do not",
        "def agrees(said, found):\n    return round(found, len(said.partition('.')[2])) == said": (
            "do you compare a number with a text"
        ),
        "def agrees(said, found):\n    return abs(float(said) - found) < 0.01 * found": "more than the digits do",
        """
        def agrees(said, found):
            digits = len(said.partition(".")[2]) if "." in said else len(said.rstrip("0")) - len(said)
            return round(found, digits) == float(said)
        """: "A 0 at the end is a digit like any other",
        "def agrees(said, found):\n    return f'{found:.1f}' == said": "your function says that they do not",
        "def agrees(said, found):\n    return abs(float(said) - found) < 0.1": "more than the digits do",
        """
        def agrees(said, found):
            scale = 10 ** len(said.partition(".")[2])
            return int(found * scale) == round(float(said) * scale)
        """: "48.58 rounds to 48.6",
        "def agrees(said, found):\n    return str(round(found, len(said.partition('.')[2]))) == said": "do not",
        "def agrees(said, found):\n    return f'{found:.{len(said)}f}' == said": "your function says that they do not",
        """
        def agrees(said, found):
            return f"{found:.{len(said.split('.')[1])}f}" == said
        """: "For said = '180' and found = 1750.0 your function stopped: IndexError: list index out of range. "
        "This number has no decimal point",
    },
    "held_bytes": {
        "def held_bytes(parameters, stage, ranks):\n    pass": "Return a number of bytes",
        "def held_bytes(parameters, stage, ranks):\n    return 16 * parameters": "You divide nothing",
        "def held_bytes(parameters, stage, ranks):\n    return 16 * parameters / (ranks if stage else 1)": (
            "Stage 1 shards the optimizer state alone"
        ),
        "def held_bytes(parameters, stage, ranks):\n    return 16 * parameters / ranks": "also in stage 0",
        held("weights", "gradients", "optimizer"): "You begin with the parameters",
        held("optimizer", "gradients", "weights", state=8): "beside the two moments: 12",
        held("optimizer", "gradients", "weights", first=0): "Stage 0 shards nothing",
        held("optimizer", "gradients", "weights", first=2): "a stage too late",
        held("optimizer", "gradients", "weights", sign="=="): "one part only",
        held("optimizer", "gradients", "weights", after="* ranks"): "Of one?",
        held("optimizer", "gradients", "weights", after="/ 1e9"): "says 8.192e-06. That is the number in GB",
        """
        def held_bytes(parameters, stage, ranks):
            two = 2 // ranks if stage >= 2 else 2
            return parameters * (two + (2 // ranks if stage == 3 else 2) + (12 // ranks if stage else 12))
        """: "yours says 2,560. // rounds down",
        "def held_bytes(parameters, stage, ranks):\n    return parameters * (4 + 12 / (ranks if stage == 1 else 1))": (
            "in stage 1 alone"
        ),
        "def held_bytes(parameters, stage, ranks):\n    return parameters * (4 + 12 / (ranks if stage else 1))": (
            "Only the optimizer state is divided"
        ),
        held("optimizer", "gradients", "nothing = 1; nothing"): "The parameters are never divided",
    },
    "two_level_seconds": {
        "def two_level_seconds(nbytes, nodes, gpus, nvlink, port):\n    pass": "Return a number of seconds",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            inside = 2 * (gpus - 1) / gpus * nbytes / nvlink
            return inside + 2 * (nodes - 1) / nodes * nbytes / gpus / port
        """: "NVLink counted in both directions",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            inside = (gpus - 1) / gpus * nbytes / nvlink + nbytes / nvlink
            return inside + 2 * (nodes - 1) / nodes * nbytes / gpus / port
        """: "the source's algorithm",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            inside = (gpus - 1) / gpus * nbytes / (nvlink / 2) + nbytes / (nvlink / 2)
            return inside + 2 * (nodes - 1) / nodes * nbytes / gpus / port
        """: "an all-gather of the shares is enough",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            inside = 4 * (gpus - 1) / gpus * nbytes / nvlink
            return inside + 2 * (nodes - 1) / nodes * nbytes / port
        """: "the whole gradient through each port",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            inside = 4 * (gpus - 1) / gpus * nbytes / nvlink
            return inside + (nodes - 1) / nodes * nbytes / gpus / port
        """: "A ring between the nodes has two phases",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            inside = 4 * (gpus - 1) / gpus * nbytes / nvlink
            return inside + 2 * (nodes - 1) / nodes * nbytes / gpus / (gpus * port)
        """: "divide by the GPUs of a node twice",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            inside = 2 * (gpus - 1) / gpus * nbytes / (2 * nvlink)
            return inside + 2 * (nodes - 1) / nodes * nbytes / gpus / port
        """: "twice the bandwidth of NVLink",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            return 4 * (gpus - 1) / gpus * nbytes / nvlink
        """: "Nothing crosses between the nodes",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            return 2 * (nodes - 1) / nodes * nbytes / gpus / port
        """: "The two phases inside the node are missing",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            n = nodes * gpus
            return 4 * (gpus - 1) / gpus * nbytes / nvlink + 2 * (n - 1) / n * nbytes / gpus / port
        """: "not as many as there are GPUs",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            inside = 4 * (gpus - 1) / gpus * nbytes / nvlink
            return 1e3 * (inside + 2 * (nodes - 1) / nodes * nbytes / gpus / port)
        """: "Return seconds",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            n = nodes * gpus
            return 2 * (n - 1) / n * nbytes / port
        """: "one flat ring over all GPUs",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            return 4 * nbytes / nvlink + 2 * (nodes - 1) / nodes * nbytes / gpus / port
        """: "a GPU keeps its own part",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            return 4 * (gpus - 1) / gpus * nbytes / nvlink + 2 * nbytes / gpus / port
        """: "missing between the nodes",
        """
        def two_level_seconds(nbytes, nodes, gpus, nvlink, port):
            return 4 * nbytes / nvlink + 2 * nbytes / gpus / port
        """: "inside the node and between",
    },
}
