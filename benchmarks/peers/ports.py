"""Where a peer listens."""

import argparse
import socket


def given_port() -> int:
    """Of the command line: `--port PORT`."""
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    return int(options.parse_args().port)


def free_port() -> int:
    """For what a server insists on beside HTTP: a port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
