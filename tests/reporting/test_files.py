"""Only regular files are opened, and only up to a size."""

import os
import socket
from pathlib import Path

import pytest

from tailproof.reporting.files import open_regular, read_regular


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert read_regular(file, 100) == b"x" * 100
    with pytest.raises(OSError, match="larger than 99 bytes"):
        read_regular(file, 99)
    with pytest.raises(OSError, match="larger than 99 bytes"):
        open_regular(file, 99)


def test_a_file_that_tells_no_size_is_read_up_to_the_limit() -> None:
    """/proc/self/stat is regular, and of 0 bytes as long as nobody reads it."""
    assert read_regular(Path("/proc/self/stat"), 1 << 20)
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_regular(Path("/proc/self/stat"), 10)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 1 << 40)  # all of it a hole
    with pytest.raises(OSError, match="larger than 32 MiB"):
        read_regular(file, 32 << 20)


def test_what_might_never_end_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("fifo", "link", "socket"):
            with pytest.raises(OSError, match="no regular file"):
                read_regular(tmp_path / name, 100)


def test_what_is_not_there_or_a_folder_is_told_as_ever(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing", 100)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 100)
