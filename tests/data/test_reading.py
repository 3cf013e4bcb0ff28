"""What is read of files: text that is what it says it is, and a clear line for everything else."""

import gzip
import io
import json
import lzma
import os
import random
import tarfile
import warnings
from pathlib import Path

import pytest
from support.bundles import bundle, letters

from hdlm.cli.main import main
from hdlm.data.corpus import known_nats, locate, open_corpus
from hdlm.data.packed import load_rows
from hdlm.data.tokenizer import make_tokenizer
from hdlm.evaluate.texts import documents, fingerprint

TEXT = "Ein Märchen vom Käse.\n" * 400
LATIN, UTF_16 = TEXT.encode("latin-1"), TEXT.encode("utf-16")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))


def tar_of(content: bytes, mode: str = "w", name: str = "d/a.txt") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for place in (name, f"d/._{Path(name).name}", f"d/.git/{Path(name).name}", f"d/b{Path(name).suffix}"):
            found = b"\0\xff" if "/." in place else content
            info = tarfile.TarInfo(place)
            info.size = len(found)
            archive.addfile(info, io.BytesIO(found))
    return file.getvalue()


def put(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


NOT_TEXT = {
    "latin-1": ("a.txt", LATIN, r"a\.txt is not utf-8: byte 5 \(0xe4\) .*--encoding latin-1"),
    "latin-1 further on": ("a.txt", b"x" * 70_000 + LATIN, "byte 70005 "),
    "latin-1 after a mark": ("a.txt", b"\xef\xbb\xbf" + LATIN, "byte 8 "),
    "packed": ("a.txt.xz", lzma.compress(LATIN), r"a\.txt\.xz is not utf-8: byte 5 "),
    "lines far down": ("a.jsonl.gz", gzip.compress(b'{"text": "ok"}\n' * 2000 + b'"\xe4"'), "byte 30001 "),
    "table": ("a.csv", b"text\nfine\n\xe4\n", "byte 10 "),
    "a file of an archive": ("a.tar", tar_of(LATIN), r"a\.tar, d/a\.txt is not utf-8: byte 5 "),
    "utf-16": ("a.txt", UTF_16, "byte 3 is NUL; if it is UTF-16, say so: --encoding utf-16"),
    "a program": ("a.txt", b"\x7fELF\x02\x01\x01\0\0\0", "is no text: byte 7 is NUL"),
    "NUL far down": ("a.jsonl", b'{"text": "ok"}\n' * 2000 + b"\0", "byte 30000 is NUL"),
    "half a character at the end": ("a.txt", TEXT.encode()[:6], "byte 5 "),
}


@pytest.mark.parametrize("case", NOT_TEXT)
def test_bytes_that_are_no_utf_8_are_refused_with_their_place(case, tmp_path):
    name, content, message = NOT_TEXT[case]
    path = put(tmp_path, name, content)
    with pytest.raises(ValueError, match=message) as caught:
        list(documents(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=message):
        load_rows(path, "train", make_tokenizer("bpe-300", open_corpus(path).documents("train")), 8)


@pytest.mark.parametrize(
    ("name", "content", "encoding"),
    [
        ("a.txt", LATIN, "latin-1"),
        ("a.txt", UTF_16, "utf-16"),
        ("a.txt", UTF_16, "utf-16:replace"),
        ("a.txt.gz", gzip.compress(TEXT.encode("cp1252"), mtime=0), "windows-1252"),
        ("a.txt", b"\xef\xbb\xbf" + TEXT.encode(), "utf-8"),
        ("a.tar.xz", tar_of(b"\xef\xbb\xbf" + TEXT.encode(), "w:xz"), "UTF8"),
        ("a.tar", tar_of(json.dumps({"text": TEXT}).encode(), name="d/a.jsonl"), "utf-8"),
    ],
)
def test_a_named_encoding_is_read_and_marks_are_dropped(name, content, encoding, tmp_path):
    found = list(documents(put(tmp_path, name, content), encoding))
    assert found == [TEXT] * (2 if "tar" in name else 1)


def test_the_encoding_is_part_of_what_is_read(tmp_path):
    path = put(tmp_path, "a.txt", b"".join(bytes([number]) for number in range(0xC0, 0xD0)) * 400)
    rows = {}
    for encoding in ("latin-1", "koi8-r"):
        corpus = open_corpus(path, encoding)
        rows[encoding] = load_rows(corpus, "train", make_tokenizer("bytes", []), 16)
    assert rows["latin-1"].tokens[0].tolist() != rows["koi8-r"].tokens[0].tolist()
    assert rows["latin-1"].content != rows["koi8-r"].content
    assert fingerprint(path, "latin-1") != fingerprint(path, "koi8-r")


def test_what_is_replaced_is_counted(tmp_path):
    path = put(tmp_path, "a.txt", LATIN)
    rows = load_rows(open_corpus(path, "utf-8:replace"), "train", make_tokenizer("bytes", []), 8)
    assert rows.replaced == pytest.approx(0.9 * 800, abs=8)
    with pytest.warns(UserWarning, match=r"800 characters are U\+FFFD, for what utf-8:replace could not decode"):
        assert "".join(documents(path, "utf-8:replace")).count("\ufffd") == 800
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "".join(documents(put(tmp_path, "b.txt", b"\xef\xbf\xbd" * 3))) == "\ufffd" * 3


@pytest.mark.parametrize("word", ["", "foo", "hex", "zip", "undefined", "utf-8:ignore", "utf-8:", "a\0b"])
def test_only_text_codecs_are_encodings(word, tmp_path):
    path = put(tmp_path, "a.txt", b"fine")
    with pytest.raises(ValueError, match=r"encoding = .* is not accepted: it must be a text codec"):
        open_corpus(path, word)


def test_named_sets_have_their_own_encoding():
    with pytest.raises(ValueError, match=r"encoding = 'latin-1' is not accepted: data = 'stdlib' has its own"):
        open_corpus("stdlib", "latin-1")


NOISE = random.Random(0).randbytes(4000).hex().encode()
CUT = {
    "xz": ("a.txt.xz", lzma.compress(NOISE)[:-20]),
    "gz": ("a.txt.gz", gzip.compress(NOISE)[:-4]),
    "gz, a wrong block": ("a.txt.gz", gzip.compress(NOISE)[:10] + b"\xff" * 100),
    "gz, a wrong sum": ("a.txt.gz", gzip.compress(NOISE)[:-8] + bytes(8)),
    "tar, in a file": ("a.tar", tar_of(NOISE)[:5000]),
    "tar, in a head": ("a.tar", tar_of(NOISE)[: 512 + 8192 + 100]),
    "tar, between files": ("a.tar", tar_of(NOISE)[: 512 + 8192]),
    "tar, packed": ("a.tar.xz", tar_of(NOISE, "w:xz")[:-8]),
    "tar, packed, after its end": ("a.tar.xz", lzma.compress(tar_of(NOISE) + bytes(2**20))[:-8]),
    "no tar": ("a.tar", NOISE),
    "no parquet": ("a.parquet", NOISE),
}


@pytest.mark.parametrize("case", CUT)
def test_a_damaged_file_is_one_line_with_its_name(case, tmp_path):
    name, content = CUT[case]
    with pytest.raises(ValueError, match=rf"{name} is damaged or was cut off: ") as caught:
        list(documents(put(tmp_path, name, content)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", ['{"text": "a\\ud800"}', "nope", "[1]", '{"body": 1}', "[" * 100_000, '{"text": 3}', '{"a":' * 100_000]
)
def test_a_bad_line_is_named_by_its_number(line, tmp_path):
    path = put(tmp_path, "a.jsonl", b'{"text": "fine"}\n\n' + line.encode())
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3: ") as caught:
        list(documents(path))
    assert "\n" not in str(caught.value)
    assert known_nats(path) is None


def test_a_table_of_numbers_is_no_text(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r'a\.parquet is not accepted: its column "text" holds int'):
        list(documents(str(tmp_path / "a.parquet")))


@pytest.mark.parametrize("name", ["pipe.txt", "pipe.npy", "pipe.jsonl"])
def test_a_pipe_is_refused_and_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    data = str(tmp_path / name)
    for read in (lambda: list(documents(data)), lambda: load_rows(data, "train", None, 8), lambda: locate(data)):
        with pytest.raises(ValueError, match="neither a file nor a folder"):
            read()


def mixed_folder(folder: Path) -> str:
    (folder / ".git").mkdir(parents=True)
    (folder / "deep").mkdir()
    for name in ("a.txt", "deep/b.md", ".git/c.txt", ".d.txt", "e.pdf", "F", "g.TXT", "deep/h.npy"):
        (folder / name).write_text("abc def" * 10)
    os.mkfifo(folder / "pipe.txt")
    (folder / "link").symlink_to(folder.parent, target_is_directory=True)
    (folder / "gone.txt").symlink_to("/nowhere/at/all")
    return str(folder)


def test_a_folder_says_what_it_skips(tmp_path):
    listing = open_corpus(mixed_folder(tmp_path / "mixed")).listing
    assert [place for place, _ in listing.read] == ["a.txt", "deep/b.md"]
    assert dict(listing.skipped) == {
        "F": "no suffix",
        "deep/h.npy": ".npy is not read",
        "e.pdf": ".pdf is not read",
        "g.TXT": ".TXT is not read",
        "gone.txt": "no regular file",
        "link": "a link to a folder",
        "pipe.txt": "no regular file",
    }
    assert str(listing) == (
        "2 files read, 7 skipped: F (no suffix), deep/h.npy (.npy is not read), e.pdf (.pdf is not read), 4 more"
    )
    assert len(list(documents(str(tmp_path / "mixed")))) == 2


def test_a_name_that_is_no_unicode_is_a_place_like_any_other(tmp_path):
    for number in range(40):
        (tmp_path / os.fsdecode(b"\xff%d.txt" % number)).write_text("some text")
    corpus = open_corpus(str(tmp_path))
    assert sum(len(list(corpus.documents(split))) for split in ("train", "valid", "test")) == 40
    assert corpus.fingerprint("train") != corpus.fingerprint("valid")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(bundle().save(tmp_path_factory.mktemp("model")))


def scored(model, *words, capsys):
    code = main(["evaluate", model, "--metrics", "bound", "--draws", "1", "--json", *words])
    return code, capsys.readouterr()


def test_an_evaluation_says_which_files_it_read(model, tmp_path, capsys):
    code, said = scored(model, "--data", mixed_folder(tmp_path / "mixed"), capsys=capsys)
    assert code == 0
    assert said.err.startswith(f"hdlm: note: {tmp_path / 'mixed'}: 2 files read, 7 skipped: F (no suffix), ")
    assert said.err.count("\n") == 1
    assert json.loads(said.out)["cells"][0]["result"]["tokens"] == 140


def test_an_evaluation_reads_the_encoding_that_is_named(model, tmp_path, capsys):
    path = put(tmp_path, "a.txt", ("abc def " * 20).encode("utf-16"))
    code, said = scored(model, "--data", path, capsys=capsys)
    assert (code, said.out, said.err.count("\n")) == (2, "", 1)
    code, said = scored(model, "--data", path, "--encoding", "utf-16", capsys=capsys)
    assert (code, said.err) == (0, "")
    assert json.loads(said.out)["cells"][0]["result"]["tokens"] == 160


def test_a_tokenizer_whose_ids_no_table_has_is_refused(tmp_path):
    """The library that writes it would walk through all ids below, and take the process with it."""
    letters().save(str(tmp_path / "tokenizer.json"))
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["model"]["vocab"]["a"] = 2**31
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="it has the token id 2,147,483,648"):
        make_tokenizer(str(tmp_path), [])
