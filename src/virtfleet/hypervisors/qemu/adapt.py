"""Fit a domain document to the libvirt and firmware that are really there."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from virtfleet.hypervisors.base import Host


def adapt(domain: Element, host: Host) -> Element:
    return domain
