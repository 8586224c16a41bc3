"""What every scripted client needs: connections, requests of a known length, whole responses, a report.

Arguments: the gateway's address and port, its certificate in PEM form ("" in the clear), and the scenario's own.
"""
import json, os, select, signal, socket, ssl, struct, sys, threading, time

HOST, PORT, CERTIFICATE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ARGUMENTS = sys.argv[4:]
FAMILY = socket.AF_INET6 if ":" in HOST else socket.AF_INET
# Longer than any `wake_bytes`.
LONG = 1024


def now():
    """CLOCK_MONOTONIC in nanoseconds, the clock of the gateway and the test."""
    return time.monotonic_ns()


def plain(timeout=60):
    """A connection without TLS."""
    connection = socket.create_connection((HOST, PORT), timeout=timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def dial(timeout=60):
    """A connection as the gateway speaks it."""
    connection = plain(timeout)
    if CERTIFICATE:
        context = ssl.create_default_context(cadata=CERTIFICATE)
        connection = context.wrap_socket(connection, server_hostname=HOST)
    return connection


def request(method="POST", body=LONG, label="", headers=""):
    """The bytes of a request with a body of `body` bytes."""
    length = f"Content-Length: {body}\r\n" if body else ""
    label = f"X-Label: {label}\r\n" if label else ""
    head = f"{method} /v1/messages HTTP/1.1\r\nHost: gateway\r\n{label}{headers}{length}\r\n"
    return head.encode() + b"." * body


def read_response(connection, method="POST"):
    """The status and the body's length of one response, read to its end and not a byte further."""
    status, fields = read_head(connection)
    while 100 <= status < 200:
        status, fields = read_head(connection)
    if method == "HEAD" or status in (204, 304):
        return status, 0
    if "content-length" in fields:
        length = int(fields["content-length"])
        read_exactly(connection, length)
        return status, length
    total = 0
    while True:
        size = int(read_line(connection), 16)
        read_exactly(connection, size + 2)
        total += size
        if size == 0:
            return status, total


def read_head(connection):
    status = int(read_line(connection).split()[1])
    fields = {}
    while line := read_line(connection):
        name, value = line.split(":", 1)
        fields[name.strip().lower()] = value.strip()
    return status, fields


def read_line(connection):
    line = b""
    while not line.endswith(b"\r\n"):
        line += read_exactly(connection, 1)
    return line[:-2].decode()


def read_exactly(connection, length):
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError("the gateway has closed")
        data += piece
    return data


def call(connection, **how):
    """One request and its response; the status."""
    connection.sendall(request(**how))
    return read_response(connection, how.get("method", "POST"))[0]


def report(**what):
    print(json.dumps(what), flush=True)
