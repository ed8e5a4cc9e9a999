"""A stranger's process: tries every address that it reads from standard input, as JSON, and prints
what it got.

argv: the user id to run as. Everything is imported before, for that user may read no Python.
"""

import encodings.idna  # noqa: F401  for addresses
import json
import os
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc

CONNECT_S, CALL_S, ANSWER_S = 3.0, 5.0, 10.0
# One read of each of Ray's gRPC services; an empty request is a valid one.
RAY = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.ActorInfoGcsService/GetAllActorInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.ReporterService/GetTraceback",
)


def main() -> None:
    tcp_call("127.0.0.1", 1, RAY[0])  # whatever gRPC imports at its first call
    if user := int(sys.argv[1]):
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    wanted = json.load(sys.stdin)
    found = {
        "tcp": tcp_all(wanted["tcp"]),
        "reached": [f"{host}:{port}" for host, port in wanted["reach"] if reaches(host, port)],
        "unix": {path: unix(path) for path in wanted["unix"]},
    }
    print(json.dumps(found))


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True


def tcp_all(addresses: Sequence[tuple[str, int]]) -> dict[str, dict[str, Any]]:
    """Return what each address says to each protocol, all at once: some never answer."""
    probes: dict[str, Callable[[str, int], Any]] = {
        "http": http,
        "tls": tls,
        "grpc": calls,
        "reached": reaches,
    }
    with ThreadPoolExecutor(max(1, len(addresses) * len(probes))) as pool:
        under_way = [
            (f"{host}:{port}", name, pool.submit(probe, host, port))
            for host, port in addresses
            for name, probe in probes.items()
        ]
    found: dict[str, dict[str, Any]] = {}
    for address, name, answer in under_way:
        found.setdefault(address, {})[name] = answer.result()
    return found


def calls(host: str, port: int) -> dict[str, str]:
    """Return the status of each call. Where nobody answers the first, all others are made at once:
    each may take its whole time.
    """
    first, *others = RAY
    found = {first: tcp_call(host, port, first)}
    silent = found[first] == grpc.StatusCode.DEADLINE_EXCEEDED.name
    with ThreadPoolExecutor(len(others) if silent else 1) as pool:
        found.update(zip(others, pool.map(partial(tcp_call, host, port), others), strict=True))
    return found


def http(host: str, port: int) -> str:
    """Return the status line and the beginning of /metrics, or nothing."""
    got = b""
    try:
        with socket.create_connection((host, port), CONNECT_S) as connection:
            connection.settimeout(ANSWER_S)
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            got = connection.recv(4096)
            while len(got) < 4096 and (more := connection.recv(4096)):
                got += more
    except OSError:  # also a server that keeps the connection after its answer
        pass
    return got.decode(errors="replace") if got.startswith(b"HTTP/1") else ""


def tls(host: str, port: int) -> bool:
    """Return True where a TLS server answers, with or without a certificate of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), CONNECT_S) as connection:
            connection.settimeout(ANSWER_S)
            return context.wrap_socket(connection).version() is not None
    except OSError:  # also whatever is no TLS
        return False


def tcp_call(host: str, port: int, method: str) -> str:
    """Return the name of the status of an empty call in the clear."""
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        try:
            channel.unary_unary(method)(b"", timeout=CALL_S)
        except grpc.RpcError as error:
            name: str = error.code().name
            return name
    return "OK"


def unix(path: str) -> str:
    """Return the error's name, or OK where anybody may connect."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            return type(error).__name__
    return "OK"


if __name__ == "__main__":
    main()
