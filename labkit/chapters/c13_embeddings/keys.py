"""Keys of chapter 13, embeddings. Numbers come from labkit.cost; every slip is one that people make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.cost.units import GB, KB, MB, MS, US
from labkit.grading.answers import Choice, Number, Symbolic

# Beside the weights ---------------------------------------------------------------------------------------------------

ROOM = 80  # GB of a GPU


def _held(M: int, d: int, optimizer: str) -> float:
    """GB of M million rows with the optimizer's state, without the counters that labkit keeps beside them."""
    counted: int = cost.table_bytes(M * 10**6, d, optimizer)
    return (counted - M * 10**6 * cost.ASKED_BYTES) / GB


def adam_gb(M: int, d: int, N: int, u: int) -> Number:
    """GB on each of N GPUs, with Adam."""
    right = _held(M, d, "adam") / N
    slips = [
        (right / 3, "That is the weights alone. Adam keeps two numbers for each of them."),
        (right * 2 / 3, "Those are two numbers for each weight. Adam keeps two *beside* the weight itself."),
        (right * N, "That is the whole table. It is cut among the GPUs."),
        (right * 4 / 3, "You counted a gradient for every weight. Only those of touched rows are there, for a moment."),
        (right / 2, "These numbers have 4 bytes, and not 2."),
    ]
    return Number.of(right, "GB", slips)


def rowwise_gb(M: int, d: int, N: int, u: int) -> Number:
    """GB on each of N GPUs, with row-wise Adagrad."""
    right = _held(M, d, "rowwise_adagrad") / N
    slips = [
        (_held(M, d, "sgd") / N, "That is the weights alone. Each row also has one number of state."),
        (_held(M, d, "adagrad") / N, "That is Adagrad, with a number for each weight. Here it is one for each row."),
        (right * N, "That is the whole table. It is cut among the GPUs."),
        (M * 4e6 / GB / N, "That is the state alone. The weights are held as well."),
        (M * 4e6 * (d + 2) / GB / N, "Row-wise Adagrad keeps one number a row, and not two."),
    ]
    return Number.of(right, "GB", slips, 0.001)


def fewest_gpus(M: int, d: int, N: int, u: int) -> Number:
    """The fewest GPUs of 80 GB that hold the table with Adam."""
    right = math.ceil(_held(M, d, "adam") / ROOM)
    slips = [
        (right - 1, "With so many it does not fit yet: round up."),
        (right + 1, "It fits on one fewer."),
        (2 ** math.ceil(math.log2(right)), "That is the next power of two. Rows may be dealt out to any number."),
        (math.ceil(_held(M, d, "sgd") / ROOM), "That is room for the weights alone. Adam's numbers lie beside them."),
    ]
    return Number.count(right, slips)


def times_as_much(M: int, d: int, N: int, u: int) -> Number:
    """Rows that dense Adam reads and writes on a GPU, over the u thousand that lazy Adam does."""
    right = M * 1e6 / N / (u * 1e3)
    slips = [
        (right * N, "That compares with the whole table. A GPU has only its own rows to go through."),
        (3 * right, "Both read and write weights and two moments, for every row that they update."),
        (right * d, "Both change all numbers of a row. Count rows on both sides."),
        (1 / right, "That is the part of its rows that a step touches. The question is the other way round."),
    ]
    return Number.of(right, "", slips)


# By rows or by columns ------------------------------------------------------------------------------------------------


def _sent(N: int, u: float, d: int, cut: str) -> float:
    """Most MB that leave a rank in pull and push, by `labkit.cost`, less the counts and words that go ahead."""
    asked: list[list[int]] = [[0] * N for _ in range(N)]
    widths = [d] * N
    if cut == "rows":
        asked = [[int(u * 1000) // N] * N for _ in range(N)]
    elif cut == "columns":
        asked, widths = [[int(u * 1000)] * N for _ in range(N)], [d // N] * N
    else:
        asked, widths = [[int(u * 1000)] + [0] * (N - 1) for _ in range(N)], [d] + [0] * (N - 1)
    ahead = 3 * (N - 1) * cost.ID_BYTES
    return (max(cost.embedding_bytes_by_rank([asked], [widths])) - ahead) / MB


def rows_mb(N: int, u: int, d: int) -> Number:
    """MB that a rank sends in a pull and a push, cut by rows."""
    right = _sent(N, u, d, "rows")
    each, others = u * 1e3 / MB, (N - 1) / N
    slips = [
        (each * others * (8 + 4 * d), "That is the pull alone. In the push the gradients of the rows go back."),
        (each * (8 + 8 * d), "A rank does not send to itself for the rows that it owns."),
        (each * others * 8 * d, "Before the rows can come, their ids must go: 8 bytes each."),
        (each * others * (16 + 8 * d), "The ids go once. In the push the owner knows them already."),
        (each * (N - 1) * (8 + 8 * d), "Each id has one owner, so it goes to one rank only."),
    ]
    return Number.of(right, "MB", slips, 0.004)


def columns_mb(N: int, u: int, d: int) -> Number:
    """MB that a rank sends in a pull and a push, cut by columns."""
    right = _sent(N, u, d, "columns")
    each, others = u * 1e3 / MB, (N - 1) / N
    slips = [
        (each * others * (8 + 8 * d), "That is as if cut by rows. By columns every other rank must know every id."),
        (each * (N - 1) * (8 + 8 * d), "Each rank has a part of the columns, so it sends and gets a part of each row."),
        (each * ((N - 1) * 8 + others * 4 * d), "That is the pull alone. In the push the gradients go back."),
        (each * (N * 8 + 8 * d), "A rank does not send to itself."),
        (each * others * 8 * d, "Before the parts of rows can come, all ids must go to every other rank."),
        (each * ((N - 1) * 16 + others * 8 * d), "The ids go once. In the push the owners know them already."),
    ]
    return Number.of(right, "MB", slips, 0.004)


def owner_mb(N: int, u: int, d: int) -> Number:
    """MB that the owner of the whole table sends in a pull and a push."""
    right = _sent(N, u, d, "table")
    each = u * 1e3 / MB
    slips = [
        (each * (N - 1) * (8 + 8 * d), "That goes in both directions together. Ids and gradients come in."),
        (each * (N - 1) * 8 * d, "The gradients come in. What does the owner itself send?"),
        (each * N * 4 * d, "The owner does not send rows to itself."),
        (each * 4 * d, "That is what one other rank gets. All the others ask as well."),
        (each * (8 + 4 * d), "That is what one of the *others* sends: its ids and its gradients."),
    ]
    return Number.of(right, "MB", slips, 0.004)


def which_is_even() -> Choice:
    """Which cut is even whatever is popular."""
    why = {
        "a": "Neighbouring ids may be popular together, and then one rank has them all.",
        "b": "This deals popular rows out, but the owner of the most popular one still has more to do.",
        "d": "Then one rank has everything to do, whatever is popular.",
    }
    return Choice("c", why)


# The hottest shard ----------------------------------------------------------------------------------------------------


def range_percent(R: int, s: float, N: int, b: int) -> Number:
    """Percent of the look-ups that go to the first of N ranges."""
    right = 100 * cost.zipf_shard_loads(R, s, N, "range")[0]
    slips = [
        (100 / N, "That is its part of the rows. Its rows are the popular ones."),
        (right * N / 100, "That is how many times the mean it gets. The question asks for a percentage."),
        (100 * cost.zipf_shard_loads(R, s, N, "modulo")[0], "That is the placement modulo."),
        (100 - right, "That is what all other ranks get together."),
        (100 * cost.zipf_shard_loads(R, s, N, "range", b)[0], "That counts equal ids of a batch once. Here every "
         "look-up counts."),
        (100 * cost.zipf_share(R, s, 1), "That is the most popular row alone."),
    ]  # fmt: skip
    return Number.of(right, "%", slips, 0.005)


def modulo_percent(R: int, s: float, N: int, b: int) -> Number:
    """Percent of the look-ups that go to rank 0 if rows are dealt out."""
    right = 100 * cost.zipf_shard_loads(R, s, N, "modulo")[0]
    slips = [
        (100 / N, "That would be even. Rank 0 has the most popular row, and the ones that follow it are rarer."),
        (100 * cost.zipf_share(R, s, 1), "That is the most popular row alone. Rank 0 has every N-th one as well."),
        (100 * cost.zipf_shard_loads(R, s, N, "range")[0], "That is the placement by range."),
        (100 * cost.zipf_shard_loads(R, s, N, "modulo")[1], "That is rank 1. Rank 0 has the ids 0, N, 2N and so on."),
        (100 * cost.zipf_shard_loads(R, s, N, "modulo", b)[0], "That counts equal ids of a batch once. Here every "
         "look-up counts."),
    ]  # fmt: skip
    return Number.of(right, "%", slips, 0.005)


THOUSANDTH = 1000


def asked_percent(R: int, s: float, N: int, b: int) -> Number:
    """Percent of the batches of b draws that have the thousandth id."""
    p = cost.zipf_share(R, s, THOUSANDTH) - cost.zipf_share(R, s, THOUSANDTH - 1)
    right = 100 * -math.expm1(b * math.log1p(-p))
    slips = [
        (100 * b * p, "That is how often it comes on average. A batch that has it three times still has it once."),
        (100 * p, "That is the chance of a single look-up. A batch has many."),
        (100 - right, "That is the chance that the batch does *not* have it."),
        (100 * (1 - (1 - 1 / R) ** b), "That would be so if all rows were equally popular."),
    ]
    return Number.of(right, "%", slips)


def ranks_when_double(R: int, s: float, N: int, b: int) -> Number:
    """The fewest ranks with which the most popular row alone is twice the mean of a rank."""
    top = cost.zipf_share(R, s, 1)
    right = math.ceil(2 / top)
    slips = [
        (math.ceil(1 / top), "With so many the row brings its owner the mean, and not twice the mean."),
        (math.floor(2 / top), "With one rank fewer it is not yet twice the mean: round up."),
        (right + 1, "It is so with one rank fewer."),
        (R, "It happens much earlier: compare the row's share of the look-ups with 1/N."),
    ]
    return Number.count(right, slips)


# A server or a ring ---------------------------------------------------------------------------------------------------


def server_ms(W: int, n: int, B: int, us: int) -> Number:
    """ms of one exchange of n MB among W workers, through one server."""
    right = cost.server_exchange_time(n * MB, W, 1, us * US, 1 / (B * GB)) / MS
    slips = [
        (right / 2, "That is one direction. All gradients come in, and then all weights go out."),
        (2 * (n * MB / (B * GB) + us * US) / MS, "That is one worker alone. All go through the same port."),
        (cost.ring_all_reduce_time(n * MB, W, us * US, 1 / (B * GB)) / MS, "That is the ring."),
        (8 * right, "The port is given in bytes a second, not in bits."),
    ]
    return Number.of(right, "ms", slips)


def ring_ms(W: int, n: int, B: int, us: int) -> Number:
    """ms of a ring all-reduce of n MB among W workers."""
    right = cost.ring_all_reduce_time(n * MB, W, us * US, 1 / (B * GB)) / MS
    slips = [
        (right / 2, "That is half of a ring: first it sums, and then it passes the sums around."),
        (2 * n * MB / (B * GB) * W / MS, "That is the server. Around a ring each port carries less than 2n."),
        (2 * (W - 1) * (n * MB / (B * GB) + us * US) / MS, "In each round a rank sends one chunk, n / W bytes."),
        (2 * n * MB / (B * GB) / MS, "A rank sends 2 (W - 1) chunks of n / W, a little less than 2n."),
    ]
    return Number.of(right, "ms", slips, 0.004)


def servers_as_good(W: int, n: int, B: int, us: int) -> Number:
    """The fewest servers whose ports carry no more in one direction than a port of the ring."""
    right = next(S for S in range(1, W + 1) if W * n / S <= 2 * (W - 1) / W * n)
    slips = [
        (W, "With as many servers as workers a port carries n. That is half of what the ring needs."),
        (right + 1, "One server fewer is enough."),
        (W // 2, "Nearly: a port of a server carries W n / S, and one of the ring a little less than 2n."),
        (1, "All W gradients come in through its port."),
    ]
    return Number.count(right, slips)


def break_even() -> Symbolic:
    """Bytes with which a server and a ring of W workers take equally long."""
    slips = [
        ("2*(W-2)*a*B/(W-(W-1)/W)", "Twice too much: both sides have a factor of 2 on latencies and on bytes."),
        ("(W-1)*a*B/(W-(W-1)/W)", "The server has latencies, too: one for each direction."),
        ("(W-2)*a*B/W", "The ring's bytes are missing. It saves W - (W - 1)/W times n / B on either side, not W."),
        ("(W-2)*a*B/(W-1)", "A rank of the ring sends (W - 1)/W of the gradient in each half, not all of it."),
        ("(W-2)*a/(B*(W-(W-1)/W))", "n / B is the time of n bytes, so B belongs on the other side."),
    ]
    return Symbolic("(W-2)*a*B/(W-(W-1)/W)", "W a B", slips)


def break_even_kb(W: int, n: int, B: int, us: int) -> Number:
    """The same in kB, for the reader's numbers."""
    ports = W - (W - 1) / W
    right = (W - 2) * us * US * B * GB / ports / KB
    slips = [
        (2 * right, "Both sides have a factor of 2 on latencies and on bytes."),
        ((W - 2) * us * US * B * GB / KB, "That leaves out how many more bytes a server's port carries."),
        ((W - 1) * us * US * B * GB / ports / KB, "The server has latencies, too: one for each direction."),
        (right / 1000, "That is in MB. The question asks for kB."),
    ]
    return Number.of(right, "kB", slips)


# Masks and bits -------------------------------------------------------------------------------------------------------


def pairs_of_clients(K: int, M: int, lost: int) -> Number:
    """Secrets that K clients agree on."""
    slips = [
        (K * (K - 1), "Two clients share one secret, and you counted it at both."),
        (K * K, "A client needs no secret with itself, and two clients share one."),
        (K - 1, "That is what one client has. Every client has as many, and each is shared by two."),
        (K, "Each *pair* has a secret of its own."),
    ]
    return Number.count(K * (K - 1) // 2, slips)


def most_bits(K: int, M: int, lost: int) -> Number:
    """The most bits behind the point with which no sum of K numbers up to M leaves int32."""
    right = max(b for b in range(32) if K * M * 2**b <= 2**31 - 1)
    slips = [
        (max(b for b in range(33) if M * 2**b <= 2**31 - 1), "One client's numbers fit. Their sum must fit, too."),
        (right + 1, "With one more bit the largest sum is above 2³¹ - 1. Half of the 32-bit numbers are negative."),
        (right - 1, "One more bit still fits."),
        (32, "Some of the 32 bits stand before the point, and one is for the sign."),
    ]
    return Number.count(right, slips)


def largest_error(K: int, M: int, lost: int) -> Number:
    """How far the sum may be off with 16 bits behind the point."""
    half = 2.0**-17
    slips = [
        (half, "That is one client's number. The errors of all may have the same sign."),
        (2 * K * half, "A number is rounded to the nearest step, so it is off by half a step at most."),
        (math.sqrt(K) * half, "That is what one may expect. The question is how far it can be at most."),
        (0.0, "The *sum* of the fixed numbers is exact. But each of them was rounded before."),
    ]
    return Number.of(K * half, "", slips)


def disclosed(K: int, M: int, lost: int) -> Number:
    """Secrets that the survivors tell the server."""
    slips = [
        (lost * K, "Those that are lost tell nothing, and nobody asks for secrets between them."),
        (lost * (K - 1), "Secrets between two lost clients mask nothing that has come."),
        (K - lost, "Each survivor has a secret with *each* of the lost ones."),
        ((K - lost) * (K - lost - 1) // 2, "Those are between survivors. Their masks cancel, and must stay secret."),
        (lost * (lost - 1) // 2, "Those are between lost clients, and mask nothing that has come."),
    ]
    return Number.count((K - lost) * lost, slips)


def if_it_comes_late() -> Choice:
    """What the server can do if a lost client's masked numbers come after the disclosure."""
    why = {
        "a": "Masks cancel in the sum of all. But the server need not add: what does it know by now?",
        "c": "Secrets between survivors were not disclosed, so their numbers stay hidden.",
        "d": "It knows every secret of that client by now, since all survivors have disclosed theirs.",
    }
    return Choice("b", why)
