"""A proxy whose connections can stop to forward."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Mute:
    """Forwards connections to an endpoint. It closes none before its end."""

    def __init__(self, endpoint: str, delay: float = 0.0) -> None:
        """delay is how many seconds each piece takes."""
        self._delay = delay
        host, port = endpoint.rsplit(":", 1)
        self._to = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._muted: set[socket.socket] = set()
        self.connecting = 0.0
        """How many seconds it takes from now on until a connection forwards anything."""
        self.mute_next = 0
        """So many connections from now on forward nothing."""
        self.endpoint = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(self._to)
            except OSError:
                return
            self.count += 1
            self._sockets += [near, far]
            if self.mute_next > 0:
                self.mute_next -= 1
                self._muted.update((near, far))
            for source, to in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, to), daemon=True).start()

    def _forward(self, source: socket.socket, to: socket.socket) -> None:
        time.sleep(self.connecting)
        try:
            while data := source.recv(1 << 16):
                time.sleep(self._delay)
                if source not in self._muted:
                    to.sendall(data)
        except OSError:
            pass

    def mute(self) -> None:
        """Forwards nothing any more on the connections that there are."""
        self._muted.update(self._sockets)

    def cut(self) -> None:
        """Ends the connections that there are."""
        for of in self._sockets:
            with contextlib.suppress(OSError):
                of.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Mute:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        for of in self._sockets:
            of.close()
