"""SPDY frames: what is written is read again however it is cut, and what is hostile is an error and nothing else."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.local.node import spdy
from virtfleet.local.node.spdy import Decoder, Encoder, Frame, SpdyError

TEXT = st.text(st.characters(max_codepoint=127), max_size=20)
HEADERS = st.dictionaries(TEXT.map(str.lower), TEXT, max_size=8)
STREAMS = st.integers(1, (1 << 31) - 1)
FRAMES = st.one_of(
    st.builds(Frame, st.just(spdy.DATA), STREAMS, st.booleans(), st.binary(max_size=100)),
    st.builds(Frame, st.sampled_from([spdy.SYN_STREAM, spdy.SYN_REPLY]), STREAMS, headers=HEADERS),
    st.builds(Frame, st.just(spdy.PING), st.integers(0, (1 << 32) - 1)),
    st.builds(Frame, st.just(spdy.RST_STREAM), STREAMS),
    st.builds(Frame, st.just(spdy.GOAWAY), STREAMS),
)


def written(frame: Frame, encoder: Encoder) -> bytes:
    match frame.kind:
        case spdy.DATA:
            return spdy.data(frame.number, frame.data, fin=frame.fin)
        case spdy.PING:
            return spdy.ping(frame.number)
        case spdy.RST_STREAM:
            return spdy.reset(frame.number, spdy.REFUSED_STREAM)
        case spdy.GOAWAY:
            return spdy.go_away(frame.number, 0)
    return encoder.opening(frame.kind, frame.number, frame.headers)


def read(*pieces: bytes) -> list[Frame]:
    decoder = Decoder()
    return [frame for piece in pieces for frame in decoder.feed(piece)]


@given(st.lists(FRAMES, max_size=8), st.integers(1, 50))
def test_what_is_written_is_read_however_it_is_cut(frames: list[Frame], size: int) -> None:
    encoder = Encoder()
    sent = b"".join(written(frame, encoder) for frame in frames)
    assert read(*(sent[at : at + size] for at in range(0, len(sent), size))) == frames


@given(
    st.lists(st.one_of(st.binary(max_size=200), st.builds(spdy.control, st.integers(0, 12), st.binary(max_size=60))))
)
def test_whatever_comes_is_a_frame_or_an_error(pieces: list[bytes]) -> None:
    try:
        for frame in read(*pieces):
            assert len(frame.data) <= spdy.LARGEST_DATA
    except SpdyError:
        pass


def test_the_dictionary_is_that_of_the_protocol() -> None:
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2  # as every stream of SPDY/3 names it


def opening(block: bytes) -> bytes:
    packer = zlib.compressobj(9, zdict=spdy.DICTIONARY)
    return spdy.control(spdy.SYN_STREAM, struct.pack(">IIH", 1, 0, 0) + packer.compress(block) + packer.flush(2))


def header(name: str, value: str = "") -> bytes:
    return b"".join(struct.pack(">I", len(text)) + text.encode() for text in (name, value))


def ended() -> bytes:
    packer = zlib.compressobj(zdict=spdy.DICTIONARY)
    packed = packer.compress(struct.pack(">I", 0)) + packer.flush()
    return spdy.control(spdy.SYN_REPLY, struct.pack(">I", 1) + packed)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (struct.pack(">II", 1, 0xFFFFFF), "a frame of 16777215 bytes"),
        (struct.pack(">II", 1 << 31 | 3 << 16 | spdy.SYN_STREAM, 1 << 15), "a frame of 32768 bytes"),
        (struct.pack(">II", 1 << 31 | 2 << 16 | spdy.PING, 4) + bytes(4), "version 2"),
        (spdy.data(0, b"x"), "stream 0"),
        (spdy.control(spdy.RST_STREAM, struct.pack(">II", 1 << 31, 1)), "stream 2147483648"),
        (spdy.control(spdy.PING, b"123"), "kind 6 with 3 bytes"),
        (spdy.control(spdy.SYN_STREAM, bytes(9)), "kind 1 with 9 bytes"),
        (spdy.control(spdy.SYN_STREAM, struct.pack(">IIH", 1, 0, 0) + b"not packed"), "cannot be unpacked"),
        (opening(struct.pack(">I", 1) + header("a", "x" * 10_000_000)), "too large"),
        (ended(), "the last one"),
        (opening(struct.pack(">I", 0xFFFFFFFF)), "4294967295 headers"),
        (opening(struct.pack(">II", 1, 0xFFFFFFF0)), "cut off"),
        (opening(b"12"), "cut off"),
        (opening(struct.pack(">I", 2) + header("a") + header("A")), "'a' twice"),
        (opening(struct.pack(">I", 1) + header("a") + b"more"), "more than its headers"),
    ],
)
def test_what_breaks_the_protocol_is_refused(sent: bytes, why: str) -> None:
    with pytest.raises(SpdyError, match=why):
        read(sent)
