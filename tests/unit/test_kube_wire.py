"""Lists and watches are split into objects whatever way the bytes arrive."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.kube import client
from virtfleet.kube.api import WatchEvent
from virtfleet.kube.client import split_events, split_list
from virtfleet.kube.errors import ApiError, is_gone


async def _arriving(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def events(*chunks: bytes) -> list[WatchEvent]:
    async def collect() -> list[WatchEvent]:
        return [event async for event in split_events(_arriving([*chunks]))]

    return asyncio.run(collect())


def test_a_list_is_split_into_the_bytes_of_its_items() -> None:
    page = split_list(b'{"metadata":{"resourceVersion":"7","continue":"t"},"items":[{"a": "\\u00e4]"}, {"b":{}}]}')
    assert page.items == [b'{"a": "\\u00e4]"}', b'{"b":{}}']
    assert (page.resource_version, page.more) == ("7", "t")


def test_a_list_that_go_wrote_as_null_is_empty() -> None:
    assert split_list(b'{"metadata":{"resourceVersion":"7"},"items":null}').items == []


def test_an_answer_that_is_no_list_is_an_error_that_says_so() -> None:
    with pytest.raises(ApiError, match="not a list"):
        split_list(b"<html>")


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20)), max_size=5), st.lists(st.integers(0, 400)))
def test_events_are_the_same_wherever_the_stream_is_cut(objects: list[dict[str, str]], cuts: list[int]) -> None:
    stream = b"".join(orjson.dumps({"type": "ADDED", "object": obj}) + b"\n" for obj in objects)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert [orjson.loads(event.object) for event in events(*chunks)] == objects


def test_half_a_line_at_the_end_never_happened() -> None:
    assert events(b'{"type":"ADDED","object":{}}\n{"type":"ADDED","obj') == [WatchEvent("ADDED", b"{}")]


def test_garbage_is_an_error_and_not_skipped() -> None:
    with pytest.raises(ApiError, match="not an event"):
        events(b'{"type":"ADDED","object":{}}\nHTTP/1.1 502\n')


def test_a_stream_without_line_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_EVENT", 1000)
    with pytest.raises(ApiError, match="more than 1000 bytes"):
        events(*[b"x" * 100] * 20)


def test_an_error_event_is_raised_with_its_code() -> None:
    status = {"kind": "Status", "reason": "Expired", "code": 410, "message": "too old resource version"}
    with pytest.raises(ApiError, match="too old") as raised:
        events(orjson.dumps({"type": "ERROR", "object": status}) + b"\n")
    assert is_gone(raised.value)
