"""Two hosts of this machine with a network between them: a namespace of the kernel each, with an
address of its own, a loopback of its own, and a cable between them. Linux, as root."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

IP = shutil.which("ip", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
ADDRESSES = "198.18.0.1", "198.18.0.2"
"""Of a range for tests of networks (RFC 2544)."""


@dataclass(frozen=True)
class Host:
    """name: of the namespace. address: of its end of the cable."""

    name: str
    address: str

    def inside(self, *command: str) -> list[str]:
        """The command, run on this host."""
        return [str(IP), "netns", "exec", self.name, *command]


def _ip(*words: str) -> None:
    subprocess.run([str(IP), *words], check=True, capture_output=True, timeout=30)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Both, which are gone afterwards.

    Raises:
        OSError, subprocess.CalledProcessError: this machine lets nobody make a network.
    """
    one = secrets.token_hex(3)
    hosts = tuple(Host(f"pearl-{one}-{i}", ADDRESSES[i]) for i in range(2))
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
        ends = [("name", "cable", "netns", host.name) for host in hosts]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for host in hosts:
            _ip("-n", host.name, "address", "add", f"{host.address}/30", "dev", "cable")
            _ip("-n", host.name, "link", "set", "lo", "up")
            _ip("-n", host.name, "link", "set", "cable", "up")
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            with suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "delete", host.name)


def allowed() -> bool:
    """Whether this machine lets this process make networks."""
    try:
        with two_hosts():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
