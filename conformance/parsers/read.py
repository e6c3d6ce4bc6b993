"""Reads what a gateway sent to an engine with one of Python's HTTP parsers.

Standard input: one connection a line, in hexadecimal. Standard output: for each a line of JSON, either the list of its
requests as [method, target, body in hexadecimal], or {"error": why}. The argument names the parser.
"""

import io
import json
import sys

# The event loop, once there is one.
LOOP = []

def by_h11(data):
    import h11

    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    out, current = [], None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            break
        if event is h11.PAUSED:
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()
            continue
        if isinstance(event, h11.Request):
            current = [event.method.decode(), event.target.decode("latin1"), b""]
        elif isinstance(event, h11.Data):
            current[2] += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            out.append(current)
            current = None
    if current is not None or connection.trailing_data[0]:
        raise ValueError("incomplete")
    return out


def by_httptools(data):
    import httptools

    class Protocol:
        def __init__(self):
            self.out, self.target, self.body = [], b"", b""

        def on_url(self, url):
            self.target += url

        def on_body(self, body):
            self.body += body

        def on_message_complete(self):
            self.out.append([parser.get_method().decode(), self.target.decode("latin1"), self.body])
            self.target, self.body = b"", b""

    protocol = Protocol()
    parser = httptools.HttpRequestParser(protocol)
    parser.feed_data(data)
    if protocol.target:
        raise ValueError("incomplete")
    return protocol.out


def by_aiohttp(data):
    import asyncio

    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.http_parser import HttpRequestParserPy

    if not LOOP:
        LOOP.append(asyncio.new_event_loop())

    async def read():
        loop = asyncio.get_running_loop()
        parser = HttpRequestParserPy(BaseProtocol(loop), loop, 2**16)
        messages, upgraded, tail = parser.feed_data(data)
        parser.feed_eof()
        if upgraded or tail:
            raise ValueError("bytes left over")
        out = []
        for message, payload in messages:
            body = await payload.read() if hasattr(payload, "read") else b""
            out.append([message.method, message.path, body])
        return out

    return LOOP[0].run_until_complete(read())


def by_http_server(data):
    from http.server import BaseHTTPRequestHandler

    out = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self):
            self.rfile, self.wfile = io.BytesIO(data), io.BytesIO()
            self.client_address = ("engine", 0)
            self.close_connection = False
            while not self.close_connection and self.rfile.tell() < len(data):
                self.handle_one_request()
            if self.rfile.tell() < len(data):
                raise ValueError("bytes left over")

        def __getattr__(self, name):
            if name.startswith("do_"):
                return self.take
            raise AttributeError(name)

        def take(self):
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            if len(body) < length or "transfer-encoding" in self.headers:
                raise ValueError("incomplete")
            out.append([self.command, self.path, body])

        def send_error(self, code, *_):
            raise ValueError(f"refused with {code}")

        def log_message(self, *_):
            pass

    Handler()
    return out


def main():
    read = {
        "h11": by_h11,
        "httptools": by_httptools,
        "aiohttp": by_aiohttp,
        "http.server": by_http_server,
    }[sys.argv[1]]
    for line in sys.stdin:
        try:
            told = [[method, target, body.hex()] for method, target, body in read(bytes.fromhex(line))]
        except Exception as error:  # whatever a parser raises is its verdict
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


main()
