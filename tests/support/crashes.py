"""A process that dies while it writes, in process: what is on the disk then is what a kill at that moment leaves.

A run is counted first, every moment at which it could die being one point; then it is run again and dies at one of
them. From there on nothing that it does reaches the disk, not even what it tidies up on its way out.
"""

import io
import os
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path


class Killed(BaseException):
    """What nobody catches."""


class Crashes:
    """Faults in all that changes names below the folder `root`, and in what is added to a file that is there.

    A file that is written aside counts when it gets its name: until then it may have been cut anywhere, which is done
    to it there, at as many places as `parts` says. `at`: the point to die at, None for none; `points`: how many there
    were.
    """

    def __init__(self, monkeypatch, root, at=None, parts=10):
        self.root, self.at, self.parts, self.points, self.dead = str(root), at, parts, 0, False
        self._real = {name: getattr(os, name) for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "truncate")}
        self._open = io.open
        for name in ("replace", "rename"):
            monkeypatch.setattr(os, name, self._moving(self._real[name]))
        for name in ("unlink", "rmdir", "mkdir"):
            monkeypatch.setattr(os, name, self._changing(self._real[name]))
        monkeypatch.setattr(io, "open", self._opening)

    def _point(self, before_death=lambda: None):
        """One moment, of the thread whose work it is; others write nothing that is ours."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self.dead:
            raise Killed
        if self.points == self.at:
            before_death()
            self.dead = True
            raise Killed
        self.points += 1

    def _changing(self, function):
        def call(path, *arguments, dir_fd=None, **how):
            folder = "." if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            if os.path.abspath(os.path.join(folder, path)).startswith(self.root):
                self._point()
            return function(path, *arguments, dir_fd=dir_fd, **how)

        return call

    def _moving(self, function):
        def call(source, target):
            if not os.path.abspath(target).startswith(self.root):
                return function(source, target)
            if ".aside-" in str(source):
                for number, file in enumerate(_files(source)):
                    for part in range(self.parts):
                        self._point(lambda number=number, file=file, part=part: self._cut(source, number, file, part))
            self._point()
            function(source, target)
            return self._point()

        return call

    def _cut(self, source, number, file, part):
        """As if a file were written so far, and those after it not begun."""
        self._real["truncate"](file, file.stat().st_size * part // self.parts)
        for later in _files(source)[number + 1 :]:
            self._real["unlink"](later)

    def _opening(self, file, mode="r", *arguments, **how):
        if self.dead and set(mode) & set("wax+"):
            self._point()
        found = self._open(file, mode, *arguments, **how)
        return _Added(found, self._point, self.parts) if mode == "a" else found


class _Added:
    """A file to which text is added, a part at a time."""

    def __init__(self, file, point, parts):
        self._file, self._point, self._parts = file, point, parts

    def write(self, text):
        ends = [len(text) * part // self._parts for part in range(self._parts + 1)]
        for start, end in pairwise(ends):
            self._point()
            self._file.write(text[start:end])
            self._file.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def _files(path):
    path = Path(path)
    return [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())


def count(monkeypatch, root, run, *, parts=10):
    """How many points a run has."""
    with monkeypatch.context() as patch:
        crashes = Crashes(patch, root, parts=parts)
        run()
    return crashes.points


def die(monkeypatch, root, run, at, *, parts=10):
    """Run up to a point and no further."""
    with monkeypatch.context() as patch:
        crashes = Crashes(patch, root, at, parts)
        with suppress(Killed):
            run()
    assert crashes.dead
