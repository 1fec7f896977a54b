"""Log lines are JSON that carries everything a reader needs."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import orjson
import pytest

from virtfleet.kube.process import ABOUT, JsonFormatter


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("virt-controller"))
    logger = logging.Logger("virtfleet.test")
    logger.addHandler(handler)
    return logger, stream


def test_a_line_has_time_level_component_place_message_and_extras(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.warning("pod %s is gone", "a/b", extra={"vmi": "a/vm1"})
    line = orjson.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("+00:00")
    assert line.pop("pos").startswith("virtfleet.test:")
    assert line == {
        "level": "warning",
        "component": "virt-controller",
        "msg": "pod a/b is gone",
        "vmi": "a/vm1",
    }


def test_what_a_line_is_about_has_the_keys_and_the_order_of_kubevirts_logs(
    log: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, stream = log
    logger.info("it runs", extra={ABOUT: {"kind": "Domain", "name": "vm1", "namespace": "a"}})
    assert '"kind":"Domain","level":"info","msg":"it runs","name":"vm1","namespace":"a","pos":' in stream.getvalue()


def test_a_trace_stays_on_one_line(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logger.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: first\nsecond" in orjson.loads(line)["trace"]


NAMED = """
import argparse
from virtfleet.kube import component
component.start_logging("virt-controller", argparse.Namespace(verbosity=2))
print(open("/proc/self/comm").read())
"""


def test_a_component_has_its_own_name_in_the_list_of_processes() -> None:
    said = subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "virt-controller"
