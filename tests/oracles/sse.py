"""Reads event streams, one a line of standard input in hexadecimal; prints what each reader made of it, as JSON.

An event is [name, data]. A reader that raises adds ["!", the exception's name].
"""

import json
import sys

import anthropic._streaming
import httpx
import httpx2
import openai
import openai._streaming
from httpx_sse import EventSource

STREAM = {"content-type": "text/event-stream"}


def read(events):
    seen = []
    try:
        for event in events:
            seen.append(event)
    except Exception as error:  # a reader's own opinion of the stream
        seen.append(["!", type(error).__name__])
    return seen


def by_httpx_sse(stream):
    response = httpx.Response(200, headers=STREAM, content=stream)
    for event in EventSource(response).iter_sse():
        yield [event.event or "message", event.data]


def by_decoder(decoder, stream):
    # Byte by byte, as slow networks deliver.
    for event in decoder.iter_bytes(bytes([byte]) for byte in stream):
        yield [event.event or "message", event.data]


def by_openai_client(stream):
    """What a program sees that uses the client: chunks, up to the terminator or an error."""
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers=STREAM, content=stream))
    client = openai.OpenAI(
        api_key="none", base_url="http://gateway.test/v1", http_client=httpx2.Client(transport=transport), max_retries=0
    )
    messages = [{"role": "user", "content": "hello"}]
    try:
        for chunk in client.chat.completions.create(model="m", messages=messages, stream=True):
            yield ["chunk", chunk.model_dump_json()]
    except openai.APIError as error:
        yield ["error", error.message]


for line in sys.stdin:
    stream = bytes.fromhex(line)
    print(
        json.dumps(
            {
                "httpx-sse": read(by_httpx_sse(stream)),
                "openai decoder": read(by_decoder(openai._streaming.SSEDecoder(), stream)),
                "openai client": read(by_openai_client(stream)),
                "anthropic decoder": read(by_decoder(anthropic._streaming.SSEDecoder(), stream)),
            }
        ),
        flush=True,
    )
