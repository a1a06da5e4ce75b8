"""Masks cancel to the bit in the sum, alone they hide what they cover, and those of lost clients are taken away."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.optim.synchrony import masking
from labkit.optim.synchrony.masking import from_fixed, mask, new_key, shared_secret, stream, to_fixed, unmatched
from labkit.wire.errors import RefusedError

BITS = 16


def pairs(clients, seed):
    """A secret for each pair, by client and partner."""
    secret = lambda a, b: hashlib.sha256(f"{seed} {min(a, b)} {max(a, b)}".encode()).digest()  # noqa: E731
    return {a: {b: secret(a, b) for b in clients if b != a} for a in clients}


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**32), st.data())
def test_the_sum_of_masked_numbers_is_to_the_bit_that_of_the_fixed_ones_whoever_is_lost(count, n, seed, data):
    lost = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    x = torch.randn(count, n, generator=torch.Generator().manual_seed(seed)) * 100
    fixed = torch.stack([to_fixed(row, BITS, count) for row in x])
    secrets = pairs(range(count), seed)
    sent = [fixed[c] + mask(secrets[c], c, n) for c in range(count) if c not in lost]
    survivors = [c for c in range(count) if c not in lost]
    disclosed = [(c, gone, secrets[c][gone]) for c in survivors for gone in lost]
    total = torch.stack(sent).sum(0, dtype=torch.int32) - unmatched(disclosed, n)
    assert torch.equal(total, fixed[survivors].sum(0, dtype=torch.int32))
    exact = torch.stack([(row.double() * 2**BITS).round() for row in x[survivors]]).sum(0) / 2**BITS
    assert torch.equal(from_fixed(total, BITS), exact)


def test_without_the_disclosure_and_alone_nothing_can_be_read():
    """A masked zero has all residues alike: of 2^16 numbers the bits are ones in half of them, within 5 deviations,
    which a fair draw leaves once in 1.7 million bits."""
    n = 2**16
    secrets = pairs(range(3), 0)
    sent = mask(secrets[0], 0, n)
    ones = torch.stack([(sent >> bit & 1).sum() for bit in range(32)]).double()
    assert (ones - n / 2).abs().max() < 5 * (n / 4) ** 0.5
    assert (sent + mask(secrets[1], 1, n)).ne(0).sum() > n - 5  # client 2's are still in it


def test_two_clients_agree_on_a_secret_that_changes_with_their_keys_and_numbers_follow_from_it():
    a, b, c = new_key(), new_key(), new_key()
    assert shared_secret(a, b.public) == shared_secret(b, a.public) != shared_secret(a, c.public)
    assert len(a.public) == masking.KEY_BYTES and len(shared_secret(a, b.public)) == masking.SECRET_BYTES
    assert torch.equal(stream(b"s", 9)[:5], stream(b"s", 5)) and not torch.equal(stream(b"s", 5), stream(b"t", 5))


def test_the_prime_is_the_one_of_its_formula_and_safe():
    """pi by Machin's formula, in integers; and Fermat's test to one base for it and for half of it."""
    one = 1 << 2000

    def arctan(k):
        term, total, n = one // k, 0, 1
        while term:
            total += term // n if n % 4 == 1 else -(term // n)
            term, n = term // (k * k), n + 2
        return total

    pi = 4 * (4 * arctan(5) - arctan(239))
    assert masking.PRIME == 2**2048 - 2**1984 - 1 + 2**64 * ((pi >> 2000 - 1918) + 124476)
    for p in (masking.PRIME, masking.PRIME // 2):
        assert pow(3, p - 1, p) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to_fixed(torch.tensor([2.0**14]), 16, 2), "the largest number is 16384: a sum of 2 such numbers"),
        (lambda: to_fixed(torch.tensor([float("nan")]), 16, 2), "the largest number is nan"),
        (lambda: to_fixed(torch.zeros(1), 31, 2), "bits=31"),
        (lambda: shared_secret(new_key(), (1).to_bytes(256)), "would make a known secret"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(RefusedError, match=words):
        make()


def test_a_sum_at_the_bound_does_not_wrap():
    x = torch.tensor([(2.0**31 - 1) / 3 - 0.5, -(2.0**31 - 1) / 3 + 0.5], dtype=torch.float64)
    fixed = to_fixed(x, 0, 3)
    total = fixed + fixed + fixed
    assert torch.equal(from_fixed(total, 0), 3 * fixed.double())
