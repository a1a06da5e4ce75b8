"""Floating-point sums depend on the order of addition. Each docstring states one; here it is replayed, bit by bit."""

from __future__ import annotations

import functools

import pytest
import torch

from labkit.collectives import ALGORITHMS, pairwise_reduce_scatter, ring_reduce_scatter

from . import cases
from .thread_world import run

SIZES = (2, 3, 4, 5, 6, 7, 8)


def rough_numbers(rank, n, dtype=torch.float32):
    """Numbers of very different size, so that another order of addition gives other bits."""
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(n, generator=generator) * 10 ** torch.randint(-4, 5, (n,), generator=generator)).to(dtype)


def added(vectors):
    return functools.reduce(torch.add, vectors)


def paired(vectors):
    """((v0 + v1) + (v2 + v3)) + ..., for a power of two of vectors."""
    while len(vectors) > 1:
        vectors = [a + b for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def folded(vectors):
    """The vectors of the active ranks, after those beyond a power of two were handed over."""
    p = len(vectors)
    p2 = 1 << (p.bit_length() - 1)
    spare = p - p2
    return [vectors[2 * i] + vectors[2 * i + 1] for i in range(spare)] + vectors[2 * spare :]


def halves(vectors):
    """(v0 + v4) + (v2 + v6) ...: partners half the world apart first."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [vectors[i] + vectors[i + half] for i in range(half)]
    return vectors[0]


def ring(vectors):
    """Chunk c: from rank c around the ring."""
    p = len(vectors)
    cut = [torch.tensor_split(v, p) for v in vectors]
    return torch.cat([added([cut[(c + i) % p][c] for i in range(p)]) for c in range(p)])


def tree(vectors):
    """Each rank adds its children's sums to its own, nearest first."""

    def total(v):
        sums, d = vectors[v], 1
        while not v & d and v + d < len(vectors):
            sums = sums + total(v + d)
            d *= 2
        return sums

    return total(0)


def hierarchical(vectors, k):
    """The ring's order of part l inside each node (from rank l + 1, home last), then the ring's over the nodes."""
    parts = []
    for local in range(k):
        inside = []
        for first in range(0, len(vectors), k):
            cut = [torch.tensor_split(v, k)[local] for v in vectors[first : first + k]]
            inside.append(added([cut[(local + 1 + i) % k] for i in range(k)]))
        parts.append(ring(inside))
    return torch.cat(parts)


STATED = {
    "naive": added,
    "everyone": added,
    "ring": ring,
    "recursive_doubling": lambda vs: paired(folded(vs)),
    "halving_doubling": lambda vs: halves(folded(vs)),
    "tree": tree,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", STATED)
def test_all_reduce_adds_in_the_order_that_its_docstring_states(algorithm, size):
    vectors = [rough_numbers(r, 101) for r in range(size)]
    results = run(lambda g: ALGORITHMS["all_reduce"][algorithm](vectors[g.rank].clone(), g), size).results
    for result in results:
        assert torch.equal(result, STATED[algorithm](vectors))


@pytest.mark.parametrize(("size", "k"), [(4, 2), (6, 2), (6, 3), (8, 4), (8, 2)])
def test_hierarchical_adds_inside_nodes_first(size, k):
    vectors = [rough_numbers(r, 101) for r in range(size)]
    world = run(lambda g: ALGORITHMS["all_reduce"]["hierarchical"](vectors[g.rank].clone(), g), size, ranks_per_node=k)
    assert all(torch.equal(result, hierarchical(vectors, k)) for result in world.results)


@pytest.mark.parametrize("size", SIZES)
def test_ring_reduce_scatter_starts_right_of_the_owner_and_comes_home_last(size):
    vectors = [rough_numbers(r, 53) for r in range(size)]
    results = run(lambda g: ring_reduce_scatter(vectors[g.rank], g), size).results
    for r, result in enumerate(results):
        parts = [torch.tensor_split(v, size)[r] for v in vectors]
        assert torch.equal(result, added([parts[(r + 1 + i) % size] for i in range(size)]))


@pytest.mark.parametrize("size", SIZES)
def test_pairwise_reduce_scatter_begins_at_home_and_goes_left(size):
    vectors = [rough_numbers(r, 53) for r in range(size)]
    results = run(lambda g: pairwise_reduce_scatter(vectors[g.rank], g), size).results
    for r, result in enumerate(results):
        parts = [torch.tensor_split(v, size)[r] for v in vectors]
        assert torch.equal(result, added([parts[(r - i) % size] for i in range(size)]))


@pytest.mark.parametrize("size", SIZES)
def test_halving_reduce_scatter_adds_as_halving_doubling_does(size):
    vectors = [rough_numbers(r, 53) for r in range(size)]
    results = run(lambda g: ALGORITHMS["reduce_scatter"]["halving"](vectors[g.rank], g), size).results
    assert torch.equal(torch.cat(results), halves(folded(vectors)))


@pytest.mark.parametrize("root", [0, 2, 4])
def test_reduce_to_a_root_counts_ranks_from_it(root):
    vectors = [rough_numbers(r, 53) for r in range(5)]
    stated = {
        "tree": tree(vectors[root:] + vectors[:root]),
        "naive": added([vectors[root], *(v for r, v in enumerate(vectors) if r != root)]),
    }
    for algorithm, wanted in stated.items():
        function = ALGORITHMS["reduce"][algorithm]
        results = run(lambda g, function=function: function(vectors[g.rank].clone(), g, root=root), 5).results
        assert torch.equal(results[root], wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("op", ["sum", "avg", "prod"])
@pytest.mark.parametrize(("_", "algorithm"), cases.algorithms("all_reduce", native=False))
def test_all_ranks_hold_the_same_bits_afterwards(_, algorithm, op, dtype):
    if algorithm == "recursive_doubling" and op == "prod" and dtype.is_complex:
        pytest.skip("a * b and b * a may differ in the last bit for complex numbers, as its docstring says")
    for size in (3, 6, 8):
        vectors = [rough_numbers(r, 21, dtype) for r in range(size)]
        function = ALGORITHMS["all_reduce"][algorithm]
        world = run(
            lambda g, f=function, v=vectors: f(v[g.rank].clone(), g, op), size, ranks_per_node=3 if size < 8 else 4
        )
        bits = [result.view(torch.uint8) for result in world.results]
        assert all(torch.equal(bits[0], other) for other in bits[1:])


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pairwise_rounds_16_bit_sums_once(dtype, op):
    size = 7
    vectors = [rough_numbers(r, 70).clamp(-50, 50).to(dtype) for r in range(size)]
    exact = torch.stack([v.float() for v in vectors])
    results = run(lambda g: pairwise_reduce_scatter(vectors[g.rank], g, op), size).results
    for r, result in enumerate(results):
        order = [torch.tensor_split(exact[(r - i) % size], size)[r] for i in range(size)]
        wanted = added(order) / (size if op == "avg" else 1)
        assert result.dtype == dtype
        assert torch.equal(result, wanted.to(dtype))


def test_an_average_of_large_16_bit_numbers_does_not_overflow_in_32():
    x = torch.full((4,), 40000.0, dtype=torch.float16)  # the largest float16 is 65504
    assert run(lambda g: pairwise_reduce_scatter(x, g, "avg"), 4).results == [40000.0] * 4
    assert all(torch.isinf(part).all() for part in run(lambda g: ring_reduce_scatter(x, g, "avg"), 4).results)


def test_an_average_is_divided_once():
    vectors = [rough_numbers(r, 30) for r in range(6)]
    for (_, algorithm), k in zip(cases.algorithms("all_reduce", native=False), [2] * 9, strict=False):
        function = ALGORITHMS["all_reduce"][algorithm]
        total = run(lambda g, f=function: f(vectors[g.rank].clone(), g, "sum"), 6, ranks_per_node=k).results
        average = run(lambda g, f=function: f(vectors[g.rank].clone(), g, "avg"), 6, ranks_per_node=k).results
        assert torch.equal(average[0], total[0] / 6)
