"""Secure aggregation: a server learns the sum of what clients send, and nothing else (Bonawitz et al. 2017).

    fixed = to_fixed(x, bits=16, terms=3)              # integers modulo 2^32, in which sums are exact
    sent = fixed + mask(secrets, me)                   # looks like noise; masks of a pair have opposite signs
    x_sum = from_fixed(sum of sent, bits=16)           # to the bit the sum of the fixed numbers: the masks are gone

Each pair of clients agrees on a secret that the server, which carries their messages, cannot know (Diffie & Hellman
1976). From it both draw the same mask; one adds it and the other takes it away. If a client's masked numbers never
come, its masks with the others stay in the sum. Then each survivor discloses the secret it had with that client, the
server draws the masks again, and `unmatched` is what it takes away.

What the paper has beyond this: secrets are shared out by Shamir's scheme, so that survivors who drop out during the
disclosure do no harm, and each client adds a second mask of its own, without which a server that calls a client lost
although its numbers came could read them. And signatures against a server that lies about keys. Nothing here is to
protect real data.
"""

from __future__ import annotations

import hashlib
import secrets as system
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError

# Group 14 of RFC 3526: 2^2048 - 2^1984 - 1 + 2^64 ([2^1918 pi] + 124476). The powers of 2 in it are of prime order.
KEY_BYTES, SECRET_BYTES, GENERATOR = 256, 32, 2
PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F"
    "83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510"
    "15728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)


class Key(NamedTuple):
    """A key pair. public: what the others get, `KEY_BYTES` bytes."""

    private: int
    public: bytes


def new_key() -> Key:
    """Drawn by the system, a new one for each round: no seed of a run can tell it."""
    private = system.randbits(256) | 1 << 255
    return Key(private, pow(GENERATOR, private, PRIME).to_bytes(KEY_BYTES))


def shared_secret(mine: Key, public: bytes) -> bytes:
    """What two clients have in common, and nobody else: `SECRET_BYTES` bytes. Raises RefusedError for a public key
    that would give the secret away, such as 1."""
    theirs = int.from_bytes(public)
    if not 1 < theirs < PRIME - 1:
        raise RefusedError("a public key must lie between 2 and the prime - 2: this one would make a known secret")
    return hashlib.sha256(pow(theirs, mine.private, PRIME).to_bytes(KEY_BYTES)).digest()


def stream(secret: bytes, n: int) -> Tensor:
    """n numbers that look random to who does not know `secret` (SHAKE-256), int32: all residues modulo 2^32 alike."""
    return torch.frombuffer(bytearray(hashlib.shake_256(secret).digest(4 * n)), dtype=torch.int32)


def mask(secrets: Mapping[int, bytes], me: int, n: int) -> Tensor:
    """What client `me` adds to its n numbers: + stream(secret) for each partner above it, - for each below.

    secrets: by partner. int32, which wraps around, and so computes modulo 2^32.
    """
    total = torch.zeros(n, dtype=torch.int32)
    for partner, secret in secrets.items():
        total.add_(stream(secret, n), alpha=1 if me < partner else -1)
    return total


def disclosed(secrets: Mapping[int, bytes], lost: Iterable[int]) -> list[bytes]:
    """What a survivor tells the server about its `lost` partners: the secrets it had with them, and no other.

    Raises RefusedError if these are all that it has: with them the server could read this client's own numbers.
    """
    told = [secrets[partner] for partner in lost]
    if len(told) == len(secrets):
        raise RefusedError("the server asks for every secret of this client, with which it could read its numbers")
    return told


def unmatched(known: Iterable[tuple[int, int, bytes]], n: int) -> Tensor:
    """The masks left in a sum: for each (survivor, lost client, secret of the two) what the survivor has added."""
    total = torch.zeros(n, dtype=torch.int32)
    for survivor, lost, secret in known:
        total += mask({lost: secret}, survivor, n)
    return total


def to_fixed(x: Tensor, bits: int, terms: int) -> Tensor:
    """x, rounded to multiples of 2^-bits, as int32. terms: how many such tensors may be added up.

    Raises RefusedError for numbers so large (or not finite) that a sum of `terms` of them could wrap around.
    """
    if type(bits) is not int or not 0 <= bits <= 30:
        raise RefusedError(f"bits={bits!r}: the fixed-point numbers take 0 to 30 of their 32 bits for the fraction")
    largest, bound = float(x.abs().max()) if x.numel() else 0.0, (2.0**31 - 1) / terms - 0.5
    if not largest * 2.0**bits <= bound:
        raise RefusedError(
            f"the largest number is {largest:g}: a sum of {terms} such numbers with {bits} bits of fraction can leave "
            f"32 bits. Give fewer bits; up to {bound / 2.0**bits:g} fits now"
        )
    return (x.to(torch.float64) * 2.0**bits).round().to(torch.int32)


def from_fixed(total: Tensor, bits: int) -> Tensor:
    """The sum again, as float64: exact, for 32 bits fit into its 53."""
    return total.to(torch.float64) * 2.0**-bits
