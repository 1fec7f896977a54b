"""A hook sidecar as people write them: it changes the maker of a VM's board and a word in its cloud-init data.

It speaks through the usual libraries, as the messages are published: `python board.py [directory]`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent import futures
from typing import Any
from xml.etree import ElementTree as ET

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

POINTS = {"OnDefineDomain": 10, "PreCloudInitIso": 0, "Shutdown": -1}
BYTES, STRING, NUMBER, MESSAGE = 12, 9, 5, 11
MESSAGES = {
    "HookPoint": [("name", 1, STRING, False), ("priority", 2, NUMBER, False)],
    "InfoResult": [("name", 1, STRING, False), ("hookPoints", 3, MESSAGE, True), ("versions", 4, STRING, True)],
    "OnDefineDomainParams": [("domainXML", 1, BYTES, False), ("vmi", 2, BYTES, False)],
    "OnDefineDomainResult": [("domainXML", 1, BYTES, False)],
    "PreCloudInitIsoParams": [
        ("cloudInitNoCloudSource", 1, BYTES, False),
        ("vmi", 2, BYTES, False),
        ("cloudInitData", 3, BYTES, False),
    ],
    "PreCloudInitIsoResult": [("cloudInitNoCloudSource", 1, BYTES, False), ("cloudInitData", 3, BYTES, False)],
    "Nothing": [],
}
ended = threading.Event()


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="hooks.proto", package="hooks", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, many in fields:
            added = message.field.add(name=field, number=number, type=kind, label=3 if many else 1)
            if kind == MESSAGE:
                added.type_name = ".hooks.HookPoint"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"hooks.{name}")) for name in MESSAGES}


CLASSES = _classes()


def info(_request: Any, _context: Any) -> Any:
    points = [CLASSES["HookPoint"](name=name, priority=priority) for name, priority in POINTS.items()]
    return CLASSES["InfoResult"](name="board", hookPoints=points, versions=["v1alpha2", "v1alpha3"])


def on_define_domain(request: Any, _context: Any) -> Any:
    domain, vmi = ET.fromstring(request.domainXML), json.loads(request.vmi)
    sysinfo = domain.find("sysinfo")
    assert sysinfo is not None
    board = sysinfo.find("baseBoard")
    if board is None:
        board = ET.SubElement(sysinfo, "baseBoard")
    maker = vmi["metadata"]["annotations"]["smbios.vm.kubevirt.io/baseBoardManufacturer"]
    ET.SubElement(board, "entry", name="manufacturer").text = maker
    return CLASSES["OnDefineDomainResult"](domainXML=ET.tostring(domain))


def pre_cloud_init_iso(request: Any, _context: Any) -> Any:
    data = json.loads(request.cloudInitData)
    data["UserData"] = data["UserData"].replace("WHO", f"the sidecar of {data['VolumeName']}")
    return CLASSES["PreCloudInitIsoResult"](cloudInitData=json.dumps(data).encode())


def shutdown(_request: Any, _context: Any) -> Any:
    ended.set()
    return CLASSES["Nothing"]()


def _method(function: Any, request: str) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        function, CLASSES[request].FromString, lambda answer: answer.SerializeToString()
    )


def main() -> None:
    directory = sys.argv[1] if len(sys.argv) > 1 else "/var/run/kubevirt-hooks"
    callbacks = {
        "OnDefineDomain": _method(on_define_domain, "OnDefineDomainParams"),
        "PreCloudInitIso": _method(pre_cloud_init_iso, "PreCloudInitIsoParams"),
        "Shutdown": _method(shutdown, "Nothing"),
    }
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("kubevirt.hooks.info.Info", {"Info": _method(info, "Nothing")}),
            grpc.method_handlers_generic_handler("kubevirt.hooks.v1alpha3.Callbacks", callbacks),
        )
    )
    server.add_insecure_port(f"unix://{directory}/board.sock")
    server.start()
    ended.wait()
    os.write(1, b"board: goodbye\n")
    server.stop(1).wait()


if __name__ == "__main__":
    main()
