"""Merging notebooks: the rules one by one, and what holds for any three notebooks."""

import copy
from collections import Counter

import nbformat
from hypothesis import given, strategies as st

from labkit.commands.merge import NOTE, TAG, cleared, from_edition, merge, same


def book(*cells, **metadata):
    """("id", "source") pairs, or ("id", "source", more)."""
    made = []
    for name, source, *more in cells:
        kind = "markdown" if source.startswith("#") else "code"
        base = {"id": name, "cell_type": kind, "source": source, "metadata": {}}
        made.append(base | ({"outputs": [], "execution_count": None} if kind == "code" else {}) | (more or [{}])[0])
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def shown(merged):
    return [(cell["id"], cell["source"]) for cell in merged.notebook["cells"]]


def test_each_side_gets_what_it_alone_changed():
    base = book(("a", "a"), ("b", "b"), ("c", "c"))
    mine = book(("a", "A of mine"), ("b", "b"), ("c", "c"))
    new = book(("a", "a"), ("b", "b of new"), ("c", "c"))
    merged = merge(base, mine, new)
    assert shown(merged) == [("a", "A of mine"), ("b", "b of new"), ("c", "c")]
    assert (merged.replaced, merged.conflicts) == (["b"], [])


def test_outputs_stay_with_cells_that_stay_and_go_with_those_that_are_replaced():
    ran = {"outputs": [{"output_type": "stream", "name": "stdout", "text": "1"}], "execution_count": 7}
    base = book(("a", "a"), ("b", "b"), ("c", "c"))
    mine = book(("a", "a", ran), ("b", "b", ran), ("c", "mine", ran))
    new = book(("a", "a", {"outputs": ["of the edition"]}), ("b", "new", ran), ("c", "c"))
    a, b, c = merge(base, mine, new).notebook["cells"]
    assert a["outputs"] == c["outputs"] == ran["outputs"] and a["execution_count"] == 7
    assert b["outputs"] == [] and b["execution_count"] is None


def test_a_conflict_keeps_the_readers_cell_and_shows_the_editions_below_as_text():
    new = book(("a", "theirs```", {"metadata": {"tags": ["parameters"]}}), ("b", "b"))
    merged = merge(book(("a", "old"), ("b", "b")), book(("a", "mine"), ("b", "b")), new)
    assert merged.conflicts == ["a"]
    first, second, third = merged.notebook["cells"]
    assert (first["id"], first["source"], third["id"]) == ("a", "mine", "b")
    assert second["cell_type"] == "markdown" and second["metadata"] == {"tags": [TAG]}
    assert second["source"] == f"{NOTE}\n\n````python\ntheirs```\n````"
    assert "outputs" not in second


def test_text_in_conflict_is_shown_as_text_with_its_pictures():
    pictures = {"attachments": {"a.png": {"image/png": "x"}}}
    merged = merge(book(("a", "# old")), book(("a", "# mine")), book(("a", "# theirs", pictures)))
    assert merged.notebook["cells"][1]["source"] == f"{NOTE}\n\n# theirs"
    assert merged.notebook["cells"][1]["attachments"] == pictures["attachments"]


def test_both_made_the_same_change():
    merged = merge(book(("a", "old")), book(("a", "same")), book(("a", "same")))
    assert shown(merged) == [("a", "same")] and not merged.conflicts


def test_a_change_of_the_cells_kind_is_a_change():
    merged = merge(book(("a", "x")), book(("a", "x", {"cell_type": "raw"})), book(("a", "y")))
    assert merged.conflicts == ["a"] and merged.notebook["cells"][0]["cell_type"] == "raw"


def test_cells_gone_from_the_edition_go_unless_the_reader_wrote_in_them():
    merged = merge(book(("a", "a"), ("b", "b"), ("c", "c")), book(("a", "a"), ("b", "mine"), ("c", "c")), book())
    assert shown(merged) == [("b", "mine")]
    assert (merged.removed, merged.outlived) == (["a", "c"], ["b"])


def test_cells_the_reader_deleted_stay_deleted():
    merged = merge(book(("a", "a"), ("b", "b")), book(), book(("a", "a"), ("b", "changed")))
    assert shown(merged) == [] and merged.stay_deleted == ["b"]


def test_added_cells_follow_what_they_were_added_under_the_readers_first():
    base, mine = book(("a", "a"), ("b", "b")), book(("m0", "m0"), ("a", "a"), ("m1", "m1"), ("m2", "m2"), ("b", "b"))
    merged = merge(base, mine, book(("n0", "n0"), ("a", "a"), ("n1", "n1"), ("b", "b"), ("n2", "n2")))
    assert [name for name, _ in shown(merged)] == ["m0", "n0", "a", "m1", "m2", "n1", "b", "n2"]
    assert merged.added == ["n0", "n1", "n2"]


def test_the_editions_order_holds_until_the_reader_moves_cells():
    base, turned = book(("a", "a"), ("b", "b")), book(("b", "b"), ("a", "a"))
    assert [name for name, _ in shown(merge(base, book(("a", "a"), ("m", "m"), ("b", "b")), turned))] == ["b", "a", "m"]
    new = book(("a", "a"), ("n", "n"), ("b", "b"))
    assert [name for name, _ in shown(merge(base, turned, new))] == ["b", "a", "n"]


def test_added_cells_do_not_come_between_a_readers_cell_and_what_it_follows_in_a_moved_notebook():
    base = book(("a", "a"), ("b", "b"))
    merged = merge(base, book(("b", "b"), ("a", "a"), ("m", "m")), book(("a", "a"), ("n", "n"), ("b", "b")))
    assert [name for name, _ in shown(merged)] == ["b", "a", "m", "n"]


def test_cells_moved_by_the_reader_and_gone_from_the_edition_do_not_decide_the_order():
    base, mine = book(*((n, n) for n in "eabcd")), book(*((n, n) for n in "eabdc"))
    once = merge(base, mine, book(("a", "a"), ("e", "e"))).notebook
    assert [cell["id"] for cell in once["cells"]] == ["a", "e"]
    assert merge(base, once, book(("a", "a"), ("e", "e"))).notebook == once


def test_the_next_conflict_takes_the_place_of_the_last_but_not_of_what_the_reader_wrote_into_it():
    first = merge(book(("a", "1")), book(("a", "mine")), book(("a", "2")))
    second = merge(book(("a", "2")), first.notebook, book(("a", "3")))
    assert [name for name, _ in shown(second)] == ["a", "a-from-edition"]
    assert "\n3\n" in shown(second)[1][1]
    first.notebook["cells"][1]["source"] += "\nmy remark"
    second = merge(book(("a", "2")), first.notebook, book(("a", "3")))
    assert [name for name, _ in shown(second)] == ["a", "a-from-edition-2", "a-from-edition"]
    assert shown(second)[2][1].endswith("my remark")


def test_taking_over_the_editions_cell_ends_the_conflict():
    first = merge(book(("a", "1")), book(("a", "mine")), book(("a", "2")))
    first.notebook["cells"][0]["source"] = "2"
    assert shown(merge(book(("a", "2")), first.notebook, book(("a", "3")))) == [("a", "3")]


def test_without_a_base_every_difference_is_the_readers():
    merged = merge(None, book(("a", "mine"), ("b", "b")), book(("a", "theirs"), ("b", "b"), ("c", "c")))
    assert [name for name, _ in shown(merged)] == ["a", "a-from-edition", "b", "c"]


def test_metadata_is_merged_key_by_key():
    base = book(("a", "a", {"metadata": {"tags": ["old"], "gone": 1, "mine": 1}}), kernelspec="old", lang="py")
    mine = book(("a", "a", {"metadata": {"tags": ["old"], "gone": 1, "mine": 2, "collapsed": True}}), kernelspec="old")
    new = book(("a", "a", {"metadata": {"tags": ["new"], "mine": 3, "fresh": 1}}), kernelspec="new", lang="py")
    merged = merge(base, mine, new).notebook
    assert merged["cells"][0]["metadata"] == {"tags": ["new"], "mine": 2, "collapsed": True, "fresh": 1}
    assert merged["metadata"] == {"kernelspec": "new"}


def test_two_cells_of_one_id_are_both_kept():
    merged = merge(book(("a", "a")), book(("a", "a"), ("a", "mine")), book(("a", "new")))
    assert shown(merged) == [("a", "new"), ("a-2", "mine")]


def test_long_ids_stay_within_the_format():
    name = "x" * 64
    cells = merge(book((name, "1")), book((name, "mine")), book((name, "2"))).notebook["cells"]
    nbformat.validate(nbformat.from_dict(book() | {"cells": cells}))


# --- what holds for any three notebooks ------------------------------------------------------------------

TEXTS = st.sampled_from(["x", "y", "# z", "", "```\nf\n```"])


@st.composite
def editions(draw, names="abcdef"):
    """An edition: some cells, each with one of a few texts."""
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=5))
    return book(*((name, draw(TEXTS)) for name in chosen))


@st.composite
def edits(draw, edition):
    """What a reader may make of an edition: run, write, delete, add, move."""
    cells = []
    for cell in edition["cells"]:
        match draw(st.sampled_from(["keep", "keep", "run", "write", "delete"])):
            case "keep":
                cells.append(dict(cell))
            case "run":
                ran = {"execution_count": 3, "outputs": [{"output_type": "stream", "name": "stdout", "text": "!"}]}
                cells.append(cell | (ran if cell["cell_type"] == "code" else {}))
            case "write":
                cells.append(cell | {"source": draw(st.sampled_from(["x", "typed 1", "typed 2"]))})
    for name in draw(st.lists(st.sampled_from(["r1", "r2", "a", "x-from-edition"]), unique=True, max_size=2)):
        if name not in {cell["id"] for cell in cells}:
            cells.insert(draw(st.integers(0, len(cells))), book((name, draw(TEXTS)))["cells"][0])
    return book() | {"cells": draw(st.permutations(cells)) if draw(st.booleans()) else cells}


@st.composite
def stories(draw):
    """(base, the reader's copy of it, the next edition, the one after it)."""
    base = draw(editions())
    return base, draw(edits(base)), draw(editions()), draw(editions())


@given(stories())
def test_nothing_the_reader_typed_is_ever_lost(story):
    base, mine, *following = story
    put_there = set()  # by the merge: the edition's version of cells in conflict
    for new in following:
        written = {cell["id"]: cell for cell in base["cells"]}
        typed = [
            cell["source"] for cell in mine["cells"]
            if cell["id"] not in put_there and (cell["id"] not in written or not same(cell, written[cell["id"]]))
        ]  # fmt: skip
        after = merge(base, mine, new).notebook
        assert Counter(typed) <= Counter(cell["source"] for cell in after["cells"])
        here = {cell["id"] for cell in mine["cells"]}
        put_there |= {c["id"] for c in after["cells"] if TAG in c["metadata"].get("tags", []) and c["id"] not in here}
        base, mine = new, after


@given(stories())
def test_a_cell_the_reader_wrote_keeps_its_outputs_and_metadata(story):
    base, mine, new, _ = story
    written = {cell["id"]: cell for cell in base["cells"]}
    after = {cell["id"]: cell for cell in merge(base, mine, new).notebook["cells"]}
    for cell in mine["cells"]:
        if cell["id"] not in written or not same(cell, written[cell["id"]]):
            assert after[cell["id"]] == cell


@given(stories())
def test_an_unchanged_edition_changes_nothing(story):
    base, mine, *_ = story
    assert merge(base, mine, base).notebook == mine


@given(stories())
def test_a_second_time_changes_nothing_even_when_the_base_was_not_noted(story):
    base, mine, new, _ = story
    once = merge(base, mine, new).notebook
    assert merge(new, once, new).notebook == once
    assert merge(base, once, new).notebook == once


@given(stories())
def test_an_untouched_copy_becomes_the_new_edition(story):
    base, _, new, _ = story
    assert merge(base, copy.deepcopy(base), new).notebook == new


@given(stories())
def test_the_result_is_a_notebook_and_the_arguments_are_as_before(story):
    base, mine, new, _ = story
    before = copy.deepcopy(story[:3])
    merged = merge(base, mine, new)
    assert (base, mine, new) == before
    nbformat.validate(nbformat.from_dict(merged.notebook))
    names = [cell["id"] for cell in merged.notebook["cells"]]
    assert len(names) == len(set(names))
    # every cell of the edition is there, stands beside the reader's, or was deleted by the reader
    gone = {cell["id"] for cell in base["cells"]} - {cell["id"] for cell in mine["cells"]}
    for cell in new["cells"]:
        versions = [c["source"] for c in merged.notebook["cells"]]
        was_same = any(same(cell, old) for old in base["cells"] if old["id"] == cell["id"])
        assert cell["id"] in gone or was_same or cell["source"] in versions or (
            from_edition(cell, "any")["source"] in versions
        )  # fmt: skip


def test_cleared_leaves_text_alone():
    assert cleared(book(("a", "# t"))["cells"][0]) == book(("a", "# t"))["cells"][0]
