"""Reads request bodies as the engines' parsers do.

A line of standard input is {"body": hex, "ranges": {field: hex}}, where the ranges are the texts that the gateway found
for some fields. For each parser a line of output says what it reads: null if it refuses the body, else the fields that
the gateway looks at and whether each range is that field's value.
"""

import json
import math
import sys
from typing import Any, Optional

import orjson
import pydantic
import pydantic_core

FIELDS = ["model", "stream", "max_tokens", "max_completion_tokens", "n"]


class StreamOptions(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    include_usage: Optional[bool] = None


class Request(pydantic.BaseModel):
    """The fields of vLLM's and SGLang's request models that matter here, with their types."""

    model_config = pydantic.ConfigDict(extra="allow")
    model: str
    stream: Optional[bool] = None
    stream_options: Optional[StreamOptions] = None
    max_tokens: Optional[int] = None
    max_completion_tokens: Optional[int] = None
    n: Optional[int] = None


def by_pydantic(body: bytes) -> Any:
    """As FastAPI does: the standard library's parser, then the model."""
    request = Request.model_validate(json.loads(body))
    options = request.stream_options
    return {
        **{field: getattr(request, field) for field in FIELDS},
        "include_usage": options.include_usage if options else None,
    }


def by_parser(parse: Any) -> Any:
    def read(body: bytes, ranges: dict[str, bytes]) -> Any:
        value = parse(body)
        if not isinstance(value, dict):
            return None
        options = value.get("stream_options")
        seen = {field: value.get(field) for field in FIELDS}
        seen["include_usage"] = options.get("include_usage") if isinstance(options, dict) else None
        same = lambda a, b: a == b or (a != a and b != b) or repr(a) == repr(b)
        wrong = [field for field, text in ranges.items() if not same(parse(text), value.get(field))]
        # A field without a range must be absent or null.
        absent = ["messages", "prompt", "input", "user", "seed", "logprobs", "stream_options"]
        wrong += [field for field in absent if field not in ranges and value.get(field) is not None]
        seen["wrong"] = wrong
        seen["prompt"] = rendered(value)
        return seen

    return read


def rendered(body: Any) -> Optional[str]:
    """The first 64 bytes of a chat's prompt, in hexadecimal; None for what is no plain chat."""
    text = ""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    for message in messages:
        for part in (message.get("role"), message.get("content")):
            if isinstance(part, list):
                part = "".join(p["text"] for p in part if isinstance(p, dict) and isinstance(p.get("text"), str))
            text += part if isinstance(part, str) else ""
            text += "\n"
    plain = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return plain.encode()[:64].hex()


READERS = {
    "json": by_parser(json.loads),
    "orjson": by_parser(orjson.loads),
    "jiter": by_parser(pydantic_core.from_json),
    "pydantic": lambda body, ranges: by_pydantic(body),
}


def printable(value: Any) -> Any:
    """What JSON cannot hold, as a text that equals nothing the gateway reads."""
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        return "lone surrogates"
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    return value


def attempt(read: Any, body: bytes, ranges: dict[str, bytes]) -> Any:
    try:
        seen = read(body, ranges)
    except (ValueError, RecursionError):
        return None
    return seen and {name: printable(value) for name, value in seen.items()}


for line in sys.stdin:
    case = json.loads(line)
    body = bytes.fromhex(case["body"])
    ranges = {field: bytes.fromhex(text) for field, text in case["ranges"].items()}
    print(json.dumps({name: attempt(read, body, ranges) for name, read in READERS.items()}), flush=True)
