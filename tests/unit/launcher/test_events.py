"""What libvirt's events mean by themselves."""

from __future__ import annotations

import libvirt

from virtfleet.launcher.libvirtd.connection import event_of
from virtfleet.protocol.messages import Event

LIFE = libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE


def test_a_panic_is_news_and_the_rest_of_a_life_is_a_state() -> None:
    panicked = (libvirt.VIR_DOMAIN_EVENT_CRASHED, libvirt.VIR_DOMAIN_EVENT_CRASHED_PANICKED)
    assert event_of(LIFE, "", panicked) == Event(kind="GuestPanicked")
    assert event_of(LIFE, "", (libvirt.VIR_DOMAIN_EVENT_STOPPED, 0)) is None


def test_other_events_say_what_libvirt_says() -> None:
    event = event_of(libvirt.VIR_DOMAIN_EVENT_ID_IO_ERROR_REASON, "IOError", ("/disk", "alias", 1, "enospc"))
    assert event == Event(kind="IOError", detail="/disk alias 1 enospc")
