"""Directories listed while they change, and file systems below the root."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.pairs import Child, Places, looks, read, tried, write


def fill(count: int, directory: str = ".") -> None:
    for number in range(count):
        write(f"{directory}/file-with-a-name-of-some-length-{number:05}", b"")


def unlinking_while_scanning() -> Any:
    fill(1500)
    seen = []
    with os.scandir(".") as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(entry.name)
    return len(seen), len(set(seen)), os.listdir(".")


def survivors_are_listed_once() -> Any:
    fill(1500)
    os.mkdir("stays")
    kept, seen = [], []
    with os.scandir(".") as entries:
        for index, entry in enumerate(entries):
            seen.append(entry.name)
            if index % 2 and entry.name != "stays":
                os.unlink(entry.name)
            else:
                kept.append(entry.name)
    return len(seen), len(set(seen)), sorted(os.listdir(".")) == sorted(kept)


def renaming_while_scanning() -> Any:
    os.mkdir("from")
    os.mkdir("to")
    fill(1000, "from")
    with os.scandir("from") as entries:
        for entry in entries:
            os.rename(f"from/{entry.name}", f"to/{entry.name}")
    return os.listdir("from"), len(os.listdir("to"))


def rm_rf_of_many() -> Any:
    for directory in ("d", "d/e", "d/e/g"):
        os.mkdir(directory)
        fill(500, directory)
    done = subprocess.run(["rm", "-rf", "d"], capture_output=True, check=False)
    return done.returncode, done.stderr, os.listdir(".")


def two_rm_rf_at_once() -> Any:
    os.makedirs("d/e")
    fill(1500, "d")
    fill(300, "d/e")
    children = [subprocess.Popen(["rm", "-rf", "d"], stderr=subprocess.PIPE) for _ in range(2)]
    for child in children:
        child.communicate()
    subprocess.run(["rm", "-rf", "d"], check=True)  # Either may have given up on what the other removed.
    return os.listdir(".")


def python_rmtree() -> Any:
    os.makedirs("d/e/f")
    os.symlink("e", "d/s")
    fill(200, "d/e")
    shutil.rmtree("d")
    return os.listdir(".")


SEEKING = r"""
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
    DIR *dir = opendir(".");
    struct dirent *entry;
    long places[4000];
    char names[4000][64];
    int count = 0, wrong = 0, dots = 0;
    for (;;) {
        long place = telldir(dir);
        if (!(entry = readdir(dir))) break;
        dots += !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
        places[count] = place;
        strncpy(names[count++], entry->d_name, 63);
    }
    for (int i = count - 1; i >= 0; i -= 7) {
        seekdir(dir, places[i]);
        entry = readdir(dir);
        wrong += !entry || strncmp(entry->d_name, names[i], 63);
    }
    unlink("gone");
    rewinddir(dir);
    int again = 0, gone = 0;
    while ((entry = readdir(dir))) { again++; gone += !strcmp(entry->d_name, "gone"); }
    struct stat dot;
    stat(".", &dot);
    printf("%d %d %d %d %d\n", count, dots, wrong, again, gone);
    return closedir(dir);
}
"""


@pytest.fixture(scope="module")
def seeker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("seeker")
    (base / "seek.c").write_text(SEEKING)
    subprocess.run(["cc", "-o", base / "seek", base / "seek.c"], check=True)
    return base / "seek"


def test_seekdir_and_rewinddir(places: Places, seeker: Path) -> None:
    def seek() -> Any:
        fill(1500)
        write("gone")
        return subprocess.run([seeker], capture_output=True, check=True).stdout

    assert places.compare(seek) == b"1503 2 0 1502 0\n"


def dots_lead_where_they_should() -> Any:
    os.makedirs("a/b")
    out = subprocess.run(["ls", "-aif", "a/b", "a"], capture_output=True, check=True, text=True).stdout
    numbers = {}
    for block in out.split("\n\n"):
        head, *lines = block.splitlines()
        for line in lines:
            number, name = line.split()
            numbers[head.rstrip(":"), name] = int(number)
    real = {name: os.stat(name).st_ino for name in (".", "a", "a/b")}
    return [
        numbers["a/b", "."] == real["a/b"],
        numbers["a/b", ".."] == real["a"],
        numbers["a", "."] == real["a"],
        numbers["a", ".."] == real["."],
        numbers["a", "b"] == real["a/b"],
    ]


def made_while_open() -> Any:
    os.mkdir("d")
    fd = os.open("d", os.O_RDONLY)
    before = os.listdir(fd)
    write("d/new")
    return before, os.listdir(fd), os.listdir("d")


def shell_globs_and_finds() -> Any:
    os.makedirs("d/e")
    fill(30, "d/e")
    os.symlink("e", "d/link")
    lines = """
        ls -lA d d/e | awk '{print $1,$2,$NF}' | grep -v ^total
        find . -type f -links 1 | sort
        echo d/* d/e/*1
        du -a --apparent-size d/e
    """
    return subprocess.run(["bash", "-c", lines], capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    "operation",
    [
        unlinking_while_scanning,
        survivors_are_listed_once,
        renaming_while_scanning,
        rm_rf_of_many,
        two_rm_rf_at_once,
        python_rmtree,
        dots_lead_where_they_should,
        made_while_open,
        shell_globs_and_finds,
    ],
)
def test_same_as_bare(places: Places, operation: Callable[[], Any]) -> None:
    places.compare(operation)


def test_equal_numbers_on_two_file_systems(places: Places, islands: list[Path]) -> None:
    for island in islands:
        (island / "f").write_text(island.name)
        (island / "d").mkdir()
        (island / "d" / "g").write_text(island.name + " below")
    one, two = islands
    assert (one / "f").stat().st_ino == (two / "f").stat().st_ino

    def look() -> Any:
        seen = [os.stat(f"island-{name}/{path}").st_ino for name in ("one", "two") for path in ("f", "d", "d/g")]
        texts = [read(f"island-{name}/{path}") for name in ("one", "two") for path in ("f", "d/g")]
        write("island-one/f", b"written")
        return [
            texts,
            len(set(seen)),
            read("island-two/f"),
            tried(os.rename, "island-one/f", "island-two/h"),
            tried(os.link, "island-one/f", "h"),
            looks("island-one/f")[3],
            sorted(os.listdir("island-two")),
        ]

    answer = Child(look, lambda: os.chdir(places.mount.point)).result()
    texts = [b"island-one", b"island-one below", b"island-two", b"island-two below"]
    assert answer == [texts, 6, b"island-two", "EXDEV", "EXDEV", 1, ["d", "f"]]
