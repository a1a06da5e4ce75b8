"""Keys of chapter 2, ranks and messages. Links come from labkit.cost; every slip is one that people really make."""

from __future__ import annotations

from labkit.cost import textbook, wires
from labkit.cost.units import GB, KB, MB, MS, US, Gb
from labkit.grading.answers import Number, Symbolic


def alpha_us(empty_us: float, full_us: float, kB: float = 0) -> Number:
    """µs of latency of a message, from the round trip of an empty one."""
    slips = [
        (empty_us, "That is the ball's way there and back: two messages."),
        (full_us / 2, "Half the round trip of the full message has the time of its bytes in it."),
    ]
    return Number(empty_us / 2, "µs", slips=slips)


def bandwidth(empty_us: float, full_us: float, kB: float = 0) -> Number:
    """GB/s of a link over which 1 MB goes there and back in `full_us`, and nothing in `empty_us`."""
    right = MB / ((full_us - empty_us) * US / 2)
    slips = [
        (right / 2 / GB, "You took the whole round trip: in that time the megabyte travels twice."),
        (MB / (full_us * US / 2) / GB, "The latency is still in that time. Which part of it belongs to the bytes?"),
        (MB / (full_us * US) / GB, "That is one megabyte for the whole round trip, with the latency of both messages."),
        (8 * right / GB, "That is in gigabits: a byte has 8 bits."),
    ]
    return Number(right / GB, "GB/s", slips=slips)


def third_us(empty_us: float, full_us: float, kB: float) -> Number:
    """µs that one message of `kB` kB takes, one way, on that link."""
    alpha, whole = empty_us / 2, full_us / 2
    part = kB * KB / MB
    right = alpha + (whole - alpha) * part
    slips = [
        (whole * part, "You shrank the whole time with the size. The latency does not shrink."),
        (2 * right, "That is there and back. Asked for is one way."),
        (right - alpha, "Those are the bytes alone. A message pays its latency too."),
        (alpha + whole * part, "The latency is in it twice: the full message's time had it already."),
        (2 * alpha + (whole - alpha) * part, "One message pays one latency; you added that of a round trip."),
    ]
    return Number(right, "µs", slips=slips)


def size_for_share() -> Symbolic:
    """The size at which a message uses the share s of the bandwidth."""
    slips = [
        ("alpha/beta", "That is the size for one half. Which share does a message of n bytes reach?"),
        ("s*alpha/beta", "At that size the share is s/(1+s). Write the share as a fraction, and solve it for n."),
        ("(1-s)/s*alpha/beta", "Upside down: the larger the share, the larger the message must be."),
        ("alpha/(s*beta)", "Smaller for a larger share? The larger the share, the larger the message must be."),
        ("alpha/((1-s)*beta)", "Nearly: with s of 1/2 this gives twice the half-bandwidth size."),
        ("s/(1-s)*beta/alpha", "Units: alpha/beta is a number of bytes."),
        ("2*s*alpha/beta", "The size does not grow in proportion to the share: the whole bandwidth is never reached."),
    ]
    return Symbolic("s/(1-s)*alpha/beta", "s alpha beta", slips)


def megabytes_needed(percent: float) -> Number:
    """MB of the smallest message that uses `percent` of NVLink."""
    s, half = percent / 100, wires.NVLINK.half_size / MB
    slips = [
        (half, "That is the size for one half of the bandwidth."),
        (2 * s * half, "In proportion to the share? The last percents need the largest messages."),
        (half / (1 - s), "Nearly: the share is n / (n + n_1/2). Solve it for n."),
        (2 * s / (1 - s) * half, "That is NVLink in both directions; a message has one."),
        (s / (1 - s) * wires.INFINIBAND.half_size / MB, "That is InfiniBand's size. Take NVLink's two numbers."),
        ((1 - s) / s * half, "Upside down: that is smaller than the size for one half."),
    ]
    return Number(s / (1 - s) * half, "MB", slips=slips)


HDR = 200 * Gb  # InfiniBand HDR, a port, in one direction: bytes per second


def times_the_bandwidth(GB_per_second: float, kB: float = 0) -> Number:
    """NVLink, stated for both directions together, in InfiniBand HDR ports, one direction of each."""
    both = GB_per_second * GB
    slips = [
        (both / HDR, "That is the source's number: both directions of NVLink against one of InfiniBand."),
        (both / (200 * GB), "200 Gb/s are gigabits. How many bytes has a port in a second?"),
        (both / 2 / (200 * GB), "One direction is right. But 200 Gb/s are gigabits: how many bytes are that?"),
        (both / 4 / HDR, "You halved twice: 200 Gb/s of InfiniBand are one direction already."),
    ]
    return Number(both / 2 / HDR, "times", slips=slips)


def times_as_fast(GB_per_second: float, kB: float) -> Number:
    """How many times faster a message of `kB` kB is over that NVLink than over that port."""
    nbytes, one, two = kB * KB, GB_per_second * GB / 2, GB_per_second * GB
    slow, fast = wires.INFINIBAND.alpha + nbytes / HDR, wires.NVLINK.alpha + nbytes / one
    slips = [
        (one / HDR, "That is the ratio of the bandwidths. A message of this size is mostly latency."),
        (two / HDR, "That is the ratio of the bandwidths, and of both directions against one."),
        (wires.INFINIBAND.alpha / wires.NVLINK.alpha, "That is the ratio of the latencies. The bytes count a little."),
        (slow / (wires.NVLINK.alpha + nbytes / two), "Nearly: a message goes in one direction of NVLink."),
        (fast / slow, "Upside down: how many times longer does InfiniBand take?"),
    ]
    return Number(slow / fast, "times", slips=slips)


STEP_SECONDS = 1.8  # of computing, of the GPT-2 example


def sync_ms() -> Number:
    """ms that 5.25 GB take in one direction of an NVLink of 900 GB/s in both."""
    stated = textbook.ring_at(textbook.GPT2_GRADIENT, 8, textbook.NVLINK_ONE_DIRECTION)
    right = stated.seconds / MS
    slips = [
        (right / 2, "That is the source's number: it divides by both directions. A rank sends in one."),
        (2 * right, "You halved twice: 450 GB/s are one direction already."),
        (8 * right, "Bits and bytes: NVLink is stated in gigabytes here."),
    ]
    return Number(right, "ms", slips=slips)


def overhead(steps: int) -> Number:
    """Percent that one such message adds to `steps` steps of computing."""
    right = 100 * sync_ms().answer * MS / (steps * STEP_SECONDS)
    slips = [
        (right / 2, "That is with the source's time of the message, half of the right one."),
        (right * steps, "That is one message after every step. Here there is one after several."),
        (right * steps * steps, "The other way round: fewer messages, less overhead."),
        (right / 100, "That is a part of one; asked for are percent."),
    ]
    return Number(right, "%", slips=slips)


def overlapped() -> Symbolic:
    """The time of N blocks of computing, of which N - 1 arrive meanwhile."""
    slips = [
        ("N*max(c, m)", "How many messages are there? The last block is computed on, and nothing arrives meanwhile."),
        ("N*c + (N-1)*m", "That is one after the other. Here a message travels while the rank computes."),
        ("N*(c + m)", "That is one after the other, and with one message too many."),
        ("(N-1)*max(c, m)", "N-1 blocks come from others, and then there is one more to compute on."),
        ("m + (N-1)*max(c, m)", "The first block needs no message, and after the last message there is a block."),
        ("max(N*c, (N-1)*m)", "A rank cannot run ahead: it computes on a block only when that one has arrived."),
        ("N*max(c, m) + m", "How many messages are there? A rank need not receive its own block."),
        ("N*c", "So it is while computing is the longer of the two. What if the message is?"),
    ]
    return Symbolic("c + (N-1)*max(c, m)", "N c m", slips)


def exposed_ms(N: int, c: float, m: float) -> Number:
    """ms that messages add to the computing, overlapped; m is above c."""
    slips = [
        ((N - 1) * m, "Those are all messages. A part of each is hidden behind the computing."),
        (N * (m - c), "How many messages are there? A rank need not receive its own block."),
        (m - c, "That is what stands out of one message. How many are there?"),
        ((N - 1) * m + c, "That is the whole time. Asked for is what it is longer than the computing alone."),
        ((N - 1) * c, "That is the part that is hidden."),
    ]
    return Number((N - 1) * (m - c), "ms", 1e-6, slips)


LATENCY = 1.0  # ms of the link in two-clocks, which carries 1 GB/s: 1 MB a ms


def virtual_return(a: float, b: float, c: float, MB: float) -> Number:
    """ms on the virtual clock at which rank 0's send returns."""
    slips = [
        (b, "That is when the receiver is there. The virtual clock does not count this wait."),
        (a, "The bytes must leave: that takes their time on the link."),
        (a + LATENCY + MB, "That is when the message is there. The sender may go on once the bytes are on their way."),
        (a + LATENCY, "Bytes on their way: that takes their time on the link, and the latency is not theirs."),
        (MB, "Before the send rank 0 computes."),
    ]
    return Number(a + MB, "ms", 1e-6, slips)


def real_return(a: float, b: float, c: float, MB: float) -> Number:
    """ms in real time at which it returns: when the receiver has taken the message, which has long been there."""
    slips = [
        (a + MB, "So it is on the virtual clock. In real time a send is a rendezvous."),
        (a + LATENCY + MB, "The message could be there then, but who takes it? Rank 1 computes."),
        (b + MB, "The link need not wait for the receiver: the message has been on its way while rank 1 computed."),
        (b + LATENCY + MB, "The link need not wait for the receiver: the message travelled while rank 1 computed."),
        (a + b, "The two ranks compute at the same time."),
        (a + b + LATENCY + MB, "The two ranks compute at the same time, and the message travels meanwhile."),
    ]
    return Number(b, "ms", 0.02, slips)


def ends_at(a: float, b: float, c: float, MB: float) -> Number:
    """ms on the virtual clock at which rank 0 has the answer."""
    message = LATENCY + MB
    slips = [
        (a + b + c + 2 * message, "The two ranks compute at the same time: rank 1 has not waited for the message."),
        (a + c + 2 * message, "Rank 1 is still busy when the message is there: it takes the later of the two times."),
        (b + c, "The answer has to travel back."),
        (b + c + 2 * message, "The first message travels while rank 1 computes. It adds nothing."),
        (b + c + MB, "The answer pays its latency too."),
        (b + c + LATENCY, "The answer has bytes too."),
        (b + message, "Rank 1 computes once more before it answers."),
    ]
    return Number(b + c + message, "ms", 1e-6, slips)


def time_in_pieces() -> Symbolic:
    """The time of M bytes in k pieces along a chain of N ranks."""
    slips = [
        ("(N-1)*(alpha + M*beta)", "That is the whole tensor from rank to rank. What does cutting change?"),
        ("(N-1)*k*(alpha + M/k*beta)", "The pieces of one hop travel while those of the others do: count the rounds."),
        ("k*(alpha + M/k*beta)", "That is the first hop. When has the last piece made its last hop?"),
        ("(k+N-1)*(alpha + M/k*beta)", "Nearly: test it with two ranks, and one piece."),
        ("(k+N)*(alpha + M/k*beta)", "Nearly: test it with two ranks, and one piece."),
        ("(k+N-2)*(alpha + M*beta)", "A round carries a piece, not the whole tensor."),
        ("alpha + (k+N-2)*M/k*beta", "Each round is a message, and each message pays its latency."),
        ("(k+N-2)*alpha + M*beta", "The latencies are right. But each of those rounds also takes M/k bytes."),
        ("(k+N-2)*(alpha + M/N*beta)", "Into how many pieces is the tensor cut?"),
    ]
    return Symbolic("(k+N-2)*(alpha + M/k*beta)", "N M k alpha beta", slips)


def best_pieces() -> Symbolic:
    """The number of pieces for which that is shortest."""
    slips = [
        ("sqrt(N*M*beta/alpha)", "Nearly: with two ranks there is nobody to pass pieces on to, and one piece is best."),
        ("sqrt((N-1)*M*beta/alpha)", "Nearly: with two ranks there is nobody to pass on to, and one piece is best."),
        ("(N-2)*M*beta/alpha", "That is the square of it: set the derivative by k to zero, and solve for k."),
        ("sqrt((N-2)*alpha/(M*beta))", "Upside down: the larger the latency, the fewer the pieces."),
        ("sqrt(M*beta/alpha)", "The longer the chain, the more pieces: which part of the time has both N and k?"),
        ("M*beta/alpha", "So the bytes of a piece would take one latency. But the longer the chain, the more pieces."),
    ]
    return Symbolic("sqrt((N-2)*M*beta/alpha)", "N M alpha beta", slips)
