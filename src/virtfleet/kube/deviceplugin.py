"""The kubelet's device-plugin API, v1beta1, as gRPC over unix sockets: its messages and how both sides meet.

Node agents call plugins, virt-handler is one; both use this module. The messages are described by the table below and
built when it is imported: no generated code, and none of its coupling to one release of the protobuf runtime.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
_REGISTRATION_TIMEOUT = 10.0
_LONGEST_PATH = 100  # gRPC counts a little more than the path itself
DIRECTORY = "/var/lib/kubelet/device-plugins"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

# Kinds of variables in which containers find the addresses of their devices. Other vendors' plugins use three of them;
# the last is for devices that a local cluster only pretends to have.
PCI, MDEV, USB, PRETEND = "PCI_RESOURCE", "MDEV_PCI_RESOURCE", "USB_RESOURCE", "PRETEND_RESOURCE"

# Message -> fields in the order of their numbers, from 1. `*` is a list, `map` a map from string to string.
_MESSAGES = {
    "Empty": "",
    "DevicePluginOptions": "bool pre_start_required, bool get_preferred_allocation_available",
    "RegisterRequest": "string version, string endpoint, string resource_name, DevicePluginOptions options",
    "NUMANode": "int64 ID",
    "TopologyInfo": "*NUMANode nodes",
    "Device": "string ID, string health, TopologyInfo topology",
    "ListAndWatchResponse": "*Device devices",
    "ContainerAllocateRequest": "*string devices_ids",
    "AllocateRequest": "*ContainerAllocateRequest container_requests",
    "Mount": "string container_path, string host_path, bool read_only",
    "DeviceSpec": "string container_path, string host_path, string permissions",
    "CDIDevice": "string name",
    "ContainerAllocateResponse": (
        "map envs, *Mount mounts, *DeviceSpec devices, map annotations, *CDIDevice cdi_devices"
    ),
    "AllocateResponse": "*ContainerAllocateResponse container_responses",
}
# Service -> method -> request, answer ("*" marks a stream). What a kubelet calls only where a plugin's options ask for
# it is left out.
_SERVICES = {
    "Registration": {"Register": ("RegisterRequest", "Empty")},
    "DevicePlugin": {
        "GetDevicePluginOptions": ("Empty", "DevicePluginOptions"),
        "ListAndWatch": ("Empty", "*ListAndWatchResponse"),
        "Allocate": ("AllocateRequest", "AllocateResponse"),
    },
}


def _build() -> dict[str, Any]:
    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "string": field_type.TYPE_STRING,
        "bool": field_type.TYPE_BOOL,
        "int64": field_type.TYPE_INT64,
    }
    file = descriptor_pb2.FileDescriptorProto(name="virtfleet/deviceplugin.proto", package=VERSION, syntax="proto3")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, text in enumerate(filter(None, fields.split(", ")), 1):
            kind, name = text.split()
            repeated = kind.startswith("*") or kind == "map"
            kind = kind.lstrip("*")
            label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            added = message.field.add(name=name, number=number, label=label)
            if kind in scalars:
                added.type = scalars[kind]
                continue
            added.type = field_type.TYPE_MESSAGE
            added.type_name = f".{VERSION}.{kind}"
            if kind == "map":
                entry = message.nested_type.add(name=f"{name.title()}Entry")
                entry.options.map_entry = True
                for part_number, part in enumerate(("key", "value"), 1):
                    entry.field.add(
                        name=part, number=part_number, type=field_type.TYPE_STRING, label=field_type.LABEL_OPTIONAL
                    )
                added.type_name = f".{VERSION}.{message_name}.{entry.name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{VERSION}.{name}")) for name in _MESSAGES
    }


MESSAGES = _build()


def message(name: str, **fields: Any) -> Any:
    """A message by its name, as the table above has it."""
    return MESSAGES[name](**fields)


def variable(kind: str, resource: str) -> str:
    """The variable for a resource, as in PCI_RESOURCE_NVIDIA_COM_T4."""
    return f"{kind}_{resource.upper().replace('/', '_').replace('.', '_')}"


def address(socket: Path) -> str:
    """A socket as gRPC is told of it. The kernel limits paths to 107 characters; longer ones go by the directory."""
    if len(os.fsencode(socket)) <= _LONGEST_PATH:
        return f"unix://{socket}"
    return f"unix:///proc/self/fd/{_handle(socket.parent)}/{socket.name}"


@cache
def _handle(directory: Path) -> int:
    return os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def channel(socket: Path) -> grpc.aio.Channel:
    # Without an authority grpc sends the socket's path as one, which servers written in Go refuse.
    return grpc.aio.insecure_channel(address(socket), options=[("grpc.default_authority", "localhost")])


def caller(to: grpc.aio.Channel, service: str, method: str) -> Callable[..., Any]:
    """A function that calls `method`: awaited for one answer, iterated for a stream of them."""
    _, answer = _SERVICES[service][method]
    kind = to.unary_stream if answer.startswith("*") else to.unary_unary
    call: Callable[..., Any] = kind(
        f"/{VERSION}.{service}/{method}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=MESSAGES[answer.lstrip("*")].FromString,
    )
    return call


def handler(service: str, implementation: Any) -> grpc.GenericRpcHandler:
    """The methods of `implementation` that carry the API's names, as a handler for a grpc.aio server.

    Callers of a method that it lacks are told that it is not there.
    """
    methods = {}
    for name, (request, answer) in _SERVICES[service].items():
        if not hasattr(implementation, name):
            continue
        kind = grpc.unary_stream_rpc_method_handler if answer.startswith("*") else grpc.unary_unary_rpc_method_handler
        methods[name] = kind(
            getattr(implementation, name),
            request_deserializer=MESSAGES[request].FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )
    return grpc.method_handlers_generic_handler(f"{VERSION}.{service}", methods)


async def serve(service: str, implementation: Any, socket: Path) -> grpc.aio.Server:
    """A server that has begun; whoever asked for it stops it."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler(service, implementation),))
    server.add_insecure_port(address(socket))
    await server.start()
    return server


async def register(socket: Path, resource: str) -> None:
    """Tell the kubelet, which listens in the same directory, of a plugin."""
    async with channel(socket.with_name(KUBELET_SOCKET)) as kubelet:
        request = message("RegisterRequest", version=VERSION, endpoint=socket.name, resource_name=resource)
        await caller(kubelet, "Registration", "Register")(request, timeout=_REGISTRATION_TIMEOUT)
