"""A host: Linux namespaces of network and mounts, with one address and shared memory of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

HOLD = "mount -t tmpfs tmpfs /dev/shm && echo && exec sleep infinity"
OPEN = """
import fcntl, os, socket, struct, sys
device = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(device, 0x400454CA, struct.pack("16sH", b"radio", 0x1001))  # TUNSETIFF: IFF_TUN | IFF_NO_PI
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"tun"], [device])
"""


class Host:
    """A context manager. address: IPv4, of a subnet that no other host has. Entering raises PermissionError
    where namespaces or TUN devices are not allowed: that needs root."""

    def __init__(self, address: str) -> None:
        self.address, self.device = address, -1

    def __enter__(self) -> Host:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", HOLD], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if not self._holder.stdout.readline():
            why = self._holder.stderr.read().decode().strip()
            raise PermissionError(f"no namespaces for {self.address}: {why}; run as root")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            opened = self.run(sys.executable, "-c", OPEN, str(theirs.fileno()), keep=(theirs.fileno(),))
            if opened.returncode:
                raise PermissionError(f"no TUN device: {opened.stderr.strip().splitlines()[-1]}; run as root")
            _, (self.device,), _, _ = socket.recv_fds(ours, 16, 1)
        for words in (
            "link set lo up",
            f"addr add {self.address}/24 dev radio",
            "link set radio up multicast on txqueuelen 20000",
            "route add default dev radio",
        ):
            done = self.run("ip", *words.split())
            if done.returncode:
                raise PermissionError(f"ip {words}: {done.stderr.strip()}; install iproute2 and run as root")

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait()

    def command(self, *words: str) -> list[str]:
        """The command line that runs a program on this host."""
        inside = ["nsenter", "-t", str(self._holder.pid), "-n", "-m", f"--wd={os.getcwd()}", "--"]
        return [*inside, *words]

    def run(self, *words: str, keep: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run a program on this host to its end. keep: file descriptors that it inherits."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, pass_fds=keep, check=False
        )
