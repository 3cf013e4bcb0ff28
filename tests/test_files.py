import pytest

from hdlm.files import written_aside


def write_half(path):
    with written_aside(path) as aside:
        aside.write_text("half")
        raise RuntimeError


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with written_aside(path) as aside:
        aside.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]
