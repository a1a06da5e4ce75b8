"""What crosses the wall: whatever may, comes out equal; whatever arrives is data or one kind of error."""

from __future__ import annotations

import json
import math
import pickle
import struct

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from labkit.grading.sandbox.plain_data import (
    DTYPES,
    MAX_DEPTH,
    MAX_HEADER,
    PREFIX,
    BadData,
    NotData,
    decode,
    encode,
)


@st.composite
def tensors(draw):
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    raw = draw(st.binary(min_size=(n := math.prod(shape) * dtype.itemsize), max_size=n))
    x = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if n else torch.empty(0, dtype=torch.uint8)
    if dtype == torch.bool:
        return (x > 127).view(shape)
    return x.view(dtype).view(shape) if n else torch.empty(shape, dtype=dtype)


scalars = (
    st.none() | st.booleans() | st.integers(-(1 << 256), 1 << 256) | st.floats() | st.text() | st.binary(max_size=40)
)
data = st.recursive(
    scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def equal(a, b):
    """The same, in type and to the bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape
        return same and (not a.numel() or torch.equal(bits(a), bits(b)))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    return a == b


def bits(x):
    return x.reshape(-1).view(torch.uint8)


@settings(max_examples=300)
@given(data)
@example(float("inf"))
@example(-0.0)
@example("\ud800\0")
def test_what_goes_in_comes_out(value):
    assert equal(decode(encode(value)), value)


@settings(max_examples=500)
@given(st.binary(max_size=200))
@example(pickle.dumps(print))
def test_any_bytes_are_data_or_one_kind_of_error(raw):
    readable(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["f", "b", "t", "d", "x", "y"]), inner, max_size=2)
    ),
    max_leaves=10,
)


@settings(max_examples=500)
@given(json_values, st.binary(max_size=30))
@example({"x": ["float32", [1 << 62, 0, 1 << 62]]}, b"")
@example({"x": ["float32", [1 << 31, 1 << 31, 1 << 31]]}, b"")
@example({"x": ["float32", [-1]]}, b"1234")
@example({"x": ["bool", [1]]}, b"\x07")
@example({"x": ["__reduce__", [1]]}, b"\x07")
@example({"d": [["a", 1], ["a", 2]]}, b"")
@example({"f": "1e400000"}, b"")
def test_any_tree_is_data_or_one_kind_of_error(tree, body):
    header = json.dumps(tree).encode()
    readable(PREFIX.pack(b"LKD1", len(header), len(body)) + header + body)


@settings(max_examples=200)
@given(data, st.data())
def test_a_cut_or_changed_message_is_data_or_one_kind_of_error(value, draw):
    raw = bytearray(encode(value))
    at = draw.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(BadData):
        decode(raw[:at])
    raw[at] ^= draw.draw(st.integers(1, 255))
    readable(bytes(raw))


def readable(raw):
    """Decode; what comes out is data, since it can be encoded again."""
    try:
        value = decode(raw)
    except BadData:
        return
    assert equal(decode(encode(value)), value)


def test_lengths_are_bounded_before_anything_is_read():
    with pytest.raises(BadData, match="too long"):
        decode(PREFIX.pack(b"LKD1", MAX_HEADER + 1, 0))
    with pytest.raises(BadData, match="too long"):
        decode(PREFIX.pack(b"LKD1", 2, 1 << 62) + b"{}")
    with pytest.raises(BadData, match="too long"):
        decode(encode(torch.zeros(10_000_000, dtype=torch.uint8)), limit=1000)


@pytest.mark.parametrize("header", ["[" * 100_000, "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "9" * 5000, "NaN"])
def test_a_header_made_to_break_the_reader(header):
    with pytest.raises(BadData):
        decode(PREFIX.pack(b"LKD1", len(header), 0) + header.encode())


class Runs:
    def __reduce__(self):
        return (print, ("ran",))


class Int(int): ...


@pytest.mark.parametrize("value", [Runs(), {1: 2}, {3}, Int(3), print, 1j, torch.zeros(2, device="meta"), [[object()]]])
def test_what_is_not_data_is_refused_in_words(value):
    with pytest.raises(NotData, match="type|dict|tensors"):
        encode(value)


def test_a_list_that_contains_itself():
    loop = []
    loop.append(loop)
    with pytest.raises(NotData, match="contains itself"):
        encode(loop)


def test_tensors_are_written_as_values():
    x = torch.arange(12.0).view(3, 4)
    assert torch.equal(decode(encode(x.t())), x.t())
    assert torch.equal(decode(encode(x[:, 1])), x[:, 1])
    one = x[:, 1][1:2]  # contiguous, as it has a single entry, with a stride of 4
    assert torch.equal(decode(encode(one)), one)
    z = torch.tensor([1 + 2j]).conj()
    assert torch.equal(decode(encode(z)), z)
    parameter = torch.nn.Parameter(x)
    assert type(decode(encode(parameter))) is torch.Tensor and not decode(encode(parameter)).requires_grad
