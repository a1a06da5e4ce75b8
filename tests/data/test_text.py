"""The text is the language reference, cut without overlap."""

import pytest
import torch

from labkit.data import batches, decode, encode, language_reference, text


def test_it_is_the_language_reference_and_repeats_no_paragraph():
    reference = language_reference()
    assert 'The "while" statement is used for repeated execution' in reference
    assert len(reference) > 200_000
    paragraphs = reference.strip("\n").split("\n\n")
    assert len(paragraphs) == len(set(paragraphs))


def test_training_and_validation_are_the_two_ends_of_it():
    train, val = text(0.25)
    assert train.dtype == val.dtype == torch.uint8
    assert decode(torch.cat([train, val])) == language_reference()
    assert abs(len(val) / (len(train) + len(val)) - 0.25) < 1e-4


@pytest.mark.parametrize("string", ["", "while True: pass", "naïve √2"])
def test_bytes_there_and_back(string):
    assert decode(encode(string)) == string
    assert len(encode(string)) == len(string.encode())


@pytest.mark.parametrize("world", [1, 3])
def test_a_target_is_the_symbol_after_its_input_and_windows_never_overlap(world):
    tokens = torch.arange(100)  # here a symbol is its own position
    seen = []
    for rank in range(world):
        feed = batches(tokens, batch=2, context=5, seed=7, rank=rank, world=world)
        for _ in range(19 // (2 * world)):
            inputs, targets = next(feed)
            assert inputs.shape == targets.shape == (2, 5)
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal(targets, inputs + 1)
            seen += inputs.flatten().tolist()
    assert len(seen) == len(set(seen)) == 19 // (2 * world) * world * 2 * 5


def test_the_same_call_gives_the_same_batches():
    train, _ = text()
    for seed, same in ((3, True), (4, False)):
        (first, _), (second, _) = next(batches(train, 4, 16, seed=3)), next(batches(train, 4, 16, seed=seed))
        assert torch.equal(first, second) == same


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: batches(torch.zeros(8), 1, 8), "9"),
        (lambda: batches(torch.zeros(9), 2, 8), "at most 1"),
        (lambda: batches(torch.zeros(9), 1, 0), "context=0"),
        (lambda: text(1.0), "validation=1.0"),
    ],
)
def test_a_text_that_is_too_short_is_refused_at_the_call(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_smallest_text_that_fits_one_window():
    inputs, targets = next(batches(torch.arange(9), 1, 8))
    assert inputs.tolist() == [list(range(8))] and targets.tolist() == [list(range(1, 9))]
