"""Files appear whole or not at all, where links lead, with the mode of the old or of the umask; pipes are fed."""

import ast
import errno
import json
import os
import shutil
import socket
import stat
import threading
from pathlib import Path

import pytest
from support.crashes import count, die

from hdlm import files
from hdlm.files import (
    check_file,
    check_folder,
    check_replaceable,
    entries,
    files_written_aside,
    finish_writing,
    folder_written_aside,
    is_written_through,
    json_text,
    written_aside,
)


def write(path, text="new"):
    with written_aside(path) as aside:
        aside.write_text(text)


def write_half(path):
    with written_aside(path) as aside:
        aside.write_text("half")
        raise RuntimeError


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with written_aside(path) as aside:
        aside.write_text("new")
        assert aside.name == path.name
        assert not path.exists()
    assert path.read_text() == "new"
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.fixture
def pipe(tmp_path):
    """A pipe with a name, and what was read from it when its writer has gone."""
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()

    def received():
        reader.join(timeout=10)
        return read[0]

    return path, received


@pytest.mark.parametrize("through_link", [False, True])
def test_a_pipe_is_fed_and_stays(tmp_path, pipe, through_link):
    path, received = pipe
    if through_link:
        (tmp_path / "link").symlink_to(path)
    out = tmp_path / "link" if through_link else path
    check_file(out)
    assert is_written_through(out)
    write(out, "x" * 100_000)  # more than a pipe holds at once
    assert received() == b"x" * 100_000
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert entries(tmp_path) == {"pipe", *(["link"] if through_link else [])}


def test_nothing_goes_into_a_pipe_when_the_block_fails(pipe):
    path, received = pipe
    with pytest.raises(RuntimeError):
        write_half(path)
    path.write_text("")  # lets the reader go
    assert received() == b""


@pytest.mark.parametrize("what", ["file", "pipe"])
def test_a_name_of_an_open_file_is_that_file(tmp_path, what):
    """As /dev/stdout is: it is written on from where it is, not begun anew or replaced."""
    if what == "file":
        descriptor = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"before ")
    else:
        source, descriptor = os.pipe()
    (tmp_path / "link").symlink_to(f"/proc/self/fd/{descriptor}")
    (tmp_path / "second").symlink_to("link")
    assert is_written_through(tmp_path / "second")
    write(tmp_path / "second")
    os.write(descriptor, b" after")
    os.close(descriptor)
    found = (tmp_path / "log").read_bytes() if what == "file" else os.read(source, 100)
    assert found == (b"before new after" if what == "file" else b"new after")
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("chain", [["far/file"], ["second", "far/file"]], ids=["link", "chain"])
@pytest.mark.parametrize("there", [True, False], ids=["there", "dangling"])
def test_links_are_followed_and_stay(tmp_path, chain, there):
    (tmp_path / "far").mkdir()
    if there:
        (tmp_path / "far" / "file").write_text("old")
    for name, leads_to in zip(("link", *chain), chain, strict=False):
        (tmp_path / name).symlink_to(leads_to)
    check_file(tmp_path / "link")
    write(tmp_path / "link")
    assert all((tmp_path / name).is_symlink() for name in ("link", *chain[:-1]))
    assert not (tmp_path / "far" / "file").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "new"
    assert os.listdir(tmp_path / "far") == ["file"]


def test_a_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "link").symlink_to("real")
    for text in ("first", "second"):
        with folder_written_aside(tmp_path / "link") as aside:
            (aside / "a").write_text(text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real" / "a").read_text() == text
    with files_written_aside(tmp_path / "link") as aside:
        (aside / "b").write_text("b")
    assert (tmp_path / "link").is_symlink()
    assert entries(tmp_path / "real") == {"a", "b"}
    assert entries(tmp_path) == {"link", "real"}


def bound_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


REFUSED = {
    "a folder": lambda path: path.mkdir(),
    "a socket": bound_socket,
    "whose folder does not exist": lambda path: path.symlink_to("nowhere/file"),
    "leads to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_can_hold_no_file_is_refused_and_stays(tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    path = tmp_path / "out"
    REFUSED[said](path.relative_to(tmp_path))
    before = path.lstat().st_ino
    for refuses in (check_file, write):
        with pytest.raises(ValueError, match=f"out is not accepted: it is .*{said}"):
            refuses(path)
    assert path.lstat().st_ino == before
    assert os.listdir(tmp_path) == ["out"]


def test_block_devices_are_refused(tmp_path, monkeypatch):
    """None is at hand without being root: a file that says it is one."""
    path = tmp_path / "disk"
    path.write_text("all there is")
    real = os.stat
    fields = list(real(path))
    fields[0] = stat.S_IFBLK | 0o600
    monkeypatch.setattr(files.os, "stat", lambda name, **how: os.stat_result(fields) if name == path else real(name))
    with pytest.raises(ValueError, match="it is a block device"):
        write(path)
    assert path.read_text() == "all there is"


def test_a_file_where_a_folder_is_wanted_is_refused_and_stays(tmp_path):
    path = tmp_path / "out"
    path.write_text("mine")
    with pytest.raises(ValueError, match="out is not accepted: it is a file"):
        check_folder(path)
    with pytest.raises(ValueError, match="it is a file"), folder_written_aside(path):
        pass
    for below in (path / "x", path / "deep" / "x"):
        with pytest.raises(ValueError, match="nothing can be written in"):
            check_file(below)
        with pytest.raises(ValueError, match="nothing can be written in"):
            check_folder(below)
    assert path.read_text() == "mine"


def test_a_folder_in_which_nothing_can_be_made_is_refused(tmp_path, monkeypatch):
    def refuse(dir):
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    for check in (check_file, check_folder):
        with pytest.raises(ValueError, match=rf"nothing can be written in {tmp_path} \(Permission denied\)"):
            check(tmp_path / "not" / "yet" / "there")
    assert not os.listdir(tmp_path)


def private(path):
    path.write_text("new")
    path.chmod(0o600)  # as safetensors makes them


@pytest.fixture
def umask_027():
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask_027")
@pytest.mark.parametrize("old", [None, 0o604])
def test_modes_are_the_old_ones_or_the_umasks(tmp_path, old):
    folder = tmp_path / "folder"
    folder.mkdir()
    if old is not None:
        for name in "ab":
            (folder / name).write_text("old")
            (folder / name).chmod(old)
    with written_aside(folder / "a") as aside:
        private(aside)
    with files_written_aside(folder) as aside:
        private(aside / "b")
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == dict.fromkeys(
        "ab", old or 0o640
    )
    folder.chmod(0o705)
    with folder_written_aside(folder) as aside:
        private(aside / "a")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == (old or 0o640)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o705
    with folder_written_aside(tmp_path / "fresh") as aside:
        private(aside / "a")
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o750


WRITERS = {
    "file": lambda path: written_aside(path / "a"),
    "files": files_written_aside,
    "folder": folder_written_aside,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_content_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch, kind):
    """Content, then the rename, then the folder that has the name."""
    events = []

    def noted(name, function):
        def call(first, *rest):
            events.append((name, os.fstat(first).st_ino if isinstance(first, int) else os.stat(first).st_ino))
            return function(first, *rest)

        monkeypatch.setattr(files.os, name, call)

    for name, function in (("fsync", os.fsync), ("replace", os.replace), ("rename", os.rename)):
        noted(name, function)
    with WRITERS[kind](tmp_path / "out") as aside:
        file = aside if kind == "file" else aside / "a"
        file.write_text("new")
    made = (tmp_path / "out" / "a").stat().st_ino
    moved = (tmp_path / "out").stat().st_ino if kind == "folder" else made
    holder = (tmp_path if kind == "folder" else tmp_path / "out").stat().st_ino
    rename = "replace" if kind != "folder" else "rename"
    assert events.index(("fsync", made)) < events.index((rename, moved))
    assert ("fsync", holder) in events[events.index((rename, moved)) :]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), Exception("I/O error: No space left on device (os error 28)")],
    ids=["python", "rust"],
)
def test_a_full_disk_is_told_of_the_path_that_was_asked_for(tmp_path, kind, error):
    path = tmp_path / "out"
    with pytest.raises(OSError, match="No space left") as caught, WRITERS[kind](path):
        raise error
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path / "a" if kind == "file" else path)
    assert not entries(path)
    with pytest.raises(FileNotFoundError) as caught, WRITERS[kind](path) as aside:
        (aside / "deep" / "er").write_text("")
    assert caught.value.filename == str(path / "a" if kind == "file" else path)
    other = FileNotFoundError(errno.ENOENT, "No such file", "another")
    with pytest.raises(FileNotFoundError, match="another"), WRITERS[kind](path):
        raise other


def test_a_folder_is_replaced_whole_or_stays(tmp_path, monkeypatch):
    path = tmp_path / "folder"

    def save(text, **how):
        with folder_written_aside(path, **how) as aside:
            (aside / text).write_text(text)

    save("old")
    real = os.rename

    def fail(source, target):
        if target == path and source.name == "new":
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(files.os, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        save("new")
    monkeypatch.undo()
    assert os.listdir(path) == ["old"]
    save("new", replace=False)
    assert os.listdir(path) == ["old"], "what another process has made stays"
    save("new")
    assert os.listdir(path) == ["new"]
    assert os.listdir(tmp_path) == ["folder"]


def test_files_that_belong_together_come_together(tmp_path, monkeypatch):
    """Killed before the last word is said, all is old; after, the next who reads finds all of it new."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # takes long
    old, new = {"a": "old", "b": "old", "c": "old", "d": "beside"}, {"a": "new", "b": "new", "d": "beside"}
    folder, seen = tmp_path / "folder", []

    def start():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, text in old.items():
            (folder / name).write_text(text)

    def save():
        with files_written_aside(folder, without=["c", "e"]) as aside:
            for name in "ab":
                (aside / name).write_text("new")

    start()
    for point in range(count(monkeypatch, tmp_path, save)):
        start()
        die(monkeypatch, tmp_path, save, point)
        finish_writing(folder)
        seen.append({name: (folder / name).read_text() for name in entries(folder)})
        save()
        assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == new
    turn = seen.index(new)
    assert seen == [old] * turn + [new] * (len(seen) - turn)
    assert turn > 20


def test_what_is_pending_behind_a_link_is_not_ours(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("private")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".pending").symlink_to(tmp_path / "mine")
    finish_writing(tmp_path / "model")
    assert (tmp_path / "mine" / "letter").exists()


def test_json_has_no_words_that_are_not_json():
    data = {"a": [1.5, float("nan"), (float("inf"), -float("inf"))], "b": {"c": float("nan")}, "d": "NaN"}
    assert json.loads(json_text(data), parse_constant=pytest.fail) == {
        "a": [1.5, None, [None, None]],
        "b": {"c": None},
        "d": "NaN",
    }
    assert json_text({"a": "ß"}, ensure_ascii=False, separators=(",", ":")) == '{"a":"ß"}'


def test_json_is_written_by_no_other_way():
    """But to be hashed, and where all numbers were checked before."""
    checked, source = {"train/loop.py", "data/packed.py"}, Path(files.__file__).parent
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump"):
                how = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                strict = how.get("allow_nan") == "False" or how.get("sort_keys") == "True"
                assert strict or str(path.relative_to(source)) in checked, f"{path}:{node.lineno}: use json_text"


@pytest.mark.parametrize(("name", "why"), [("a/../b.txt", "a is no folder"), ("b\0.txt", "it holds a zero byte")])
def test_paths_that_nobody_could_read_are_refused(name, why, tmp_path, monkeypatch):
    """The system finds nothing at a/../b while there is no a, though b could be written."""
    monkeypatch.chdir(tmp_path)
    for check in (check_file, check_folder):
        with pytest.raises(ValueError, match=f"is not accepted: {why}"):
            check(name)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    check_file("a/../b.txt")


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "config.json").mkdir()
    check_replaceable(tmp_path, ["model.safetensors"])
    with pytest.raises(ValueError, match=r"config\.json is not accepted: it is a folder"):
        check_replaceable(tmp_path, ["model.safetensors", "config.json"])
