"""alpha and beta: measured once, kept, and mended when the file is not ours."""

import pytest

import labkit
from labkit.world import machine

pytestmark = pytest.mark.ranks


def test_the_model_is_measured_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "_known", {})
    first = machine.link_model("local")
    assert 0 < first.alpha < 1 and 0 < first.beta < 1e-6
    monkeypatch.setattr(machine, "_known", {})
    monkeypatch.setattr(machine, "measure", lambda transport: 1 / 0)
    assert machine.link_model("local") == first


def test_a_file_that_is_not_ours_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "labkit").mkdir()
    for text in ("", "[1, 2]", '{"local": "far"}', '{"local": [0, -1]}'):
        (tmp_path / "labkit" / "links.json").write_text(text)
        assert machine._load() == {}
    machine._store("local", machine.LinkModel(1e-5, 1e-9))
    assert list(machine._load().values()) == [(1e-5, 1e-9)]


def test_every_rank_gets_the_same_model():
    def model(group):
        return group.link_model.alpha, group.link_model.beta

    results = labkit.launch(model, 3).results
    assert results[0] == results[1] == results[2]
