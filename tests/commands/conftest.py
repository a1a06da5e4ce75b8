"""A small edition of the book, and a reader's folder."""

import pytest
from small_books import cell, printed, write


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """An edition with two chapters, an exercise and a picture."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LABKIT_WORK", raising=False)
    directory = tmp_path / "book" / "notebooks"
    parameters = cell("parameters", "world_size: int = 4  # ranks", metadata={"tags": ["parameters"]})
    write(
        directory / "03_tiny.ipynb", cell("title", "# Tiny", "markdown"), parameters,
        cell("run", "print(world_size)", outputs=printed("4\n"), execution_count=2, metadata={"execution": {"a": "1"}}),
    )  # fmt: skip
    write(directory / "05_other.ipynb", cell("title", "# Other", "markdown"), cell("one", "1"))
    write(directory.parent / "exercises" / "03_tiny.ipynb", cell("ask", "answer = None"))
    (directory / "pictures").mkdir()
    (directory / "pictures" / "a.svg").write_text("<svg/>")
    return directory


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_WORK", str(tmp_path / "work"))
    return tmp_path / "work"
