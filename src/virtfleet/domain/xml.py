"""Elements of a domain document.

A thin layer over ElementTree that leaves out what is not set, so that builders read like the document they make.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, register_namespace, tostring

# Prefixes that people know from libvirt's documentation, instead of ns0.
register_namespace("qemu", "http://libvirt.org/schemas/domain/qemu/1.0")
register_namespace("kubevirt", "http://kubevirt.io")


def add(parent: Element, tag: str, text: str | int | None = None, /, **attributes: str | int | None) -> Element:
    """Append an element. Attributes that are None or "" are left out."""
    element = SubElement(
        parent, tag, {name: str(value) for name, value in attributes.items() if value is not None and value != ""}
    )
    if text is not None:
        element.text = str(text)
    return element


def child(parent: Element, tag: str) -> Element:
    """The element of this name, made where it is missing."""
    found = parent.find(tag)
    return add(parent, tag) if found is None else found


def yes_no(value: bool | None, default: bool = True) -> str:
    """`yes` or `no`."""
    return "yes" if (default if value is None else value) else "no"


def on_off(value: bool | None, default: bool = True) -> str:
    """`on` or `off`."""
    return "on" if (default if value is None else value) else "off"


def text(root: Element) -> str:
    """The document as people like to read it."""
    indent(root)
    return tostring(root, encoding="unicode") + "\n"
