"""Files that somebody names: regular ones, up to a size."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, most: int) -> BinaryIO:
    """A file of at most `most` bytes, to be read.

    A FIFO, device or socket is not opened: it might never end, or wait for somebody. Raises
    OSError whose `strerror` says why not.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder tells of itself
        raise OSError(errno.EINVAL, "this is no regular file")
    # What was put in its place since then must not make us wait either.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if os.fstat(file.fileno()).st_size > most:
        file.close()
        raise _too_large(most)
    return file


def read_regular(path: Path, most: int) -> bytes:
    """All of it. Raises as `open_regular` does."""
    with open_regular(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # it has grown
        raise _too_large(most)
    return content


def _too_large(most: int) -> OSError:
    shown = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most:,} bytes"
    return OSError(errno.EFBIG, f"the file is larger than {shown}")
