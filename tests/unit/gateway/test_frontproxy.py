"""What the ConfigMap of the API server tells of its front proxy."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from virtfleet.gateway.frontproxy import Settings, read_settings


def settings(**data: str) -> Settings:
    named = {f"requestheader-{key.replace('_', '-')}": value for key, value in data.items()}
    return read_settings(orjson.dumps({"metadata": {"name": "n"}, "data": named}))


def test_the_authority_names_and_headers_are_read() -> None:
    found = settings(
        client_ca_file="PEM",
        allowed_names='["front-proxy-client"]',
        username_headers='["X-Remote-User"]',
        group_headers='["X-Remote-Group"]',
        uid_headers='["X-Remote-Uid"]',
        extra_headers_prefix='["X-Remote-Extra-"]',
    )
    assert found == Settings(
        b"PEM",
        ("front-proxy-client",),
        ("X-Remote-User",),
        ("X-Remote-Group",),
        ("X-Remote-Uid",),
        ("x-remote-extra-",),
    )


def test_without_an_authority_nobody_is_trusted() -> None:
    assert settings() == Settings()
    assert read_settings(b'{"metadata": {"name": "n"}}').authorities == b""


@pytest.mark.parametrize("wrong", ["front-proxy-client", '{"a": 1}', "[1]"])
def test_what_is_not_a_list_of_names_is_not_taken_for_one(wrong: Any) -> None:
    """The cache then keeps what it had: a slip must not make every name good."""
    with pytest.raises(ValueError):
        settings(allowed_names=wrong)
