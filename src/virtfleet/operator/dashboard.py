"""virt-dashboard, where the KubeVirt object asks for it: one process without any rights of its own. Pure.

Visitors are known to one process only, so there is one replica; a restart costs them a login. The Pod has the name of a
service account and nothing that proves it: no token is mounted, only the certificate authority of the API server.
"""

from __future__ import annotations

from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator import roles
from virtfleet.operator.deployments import deployment
from virtfleet.operator.endpoints import service

VIRT_DASHBOARD = "virt-dashboard"
ACCOUNT = "kubevirt-dashboard"
_AUTHORITY = {"name": "cluster", "configMap": {"name": "kube-root-ca.crt"}}
_AUTHORITY_MOUNT = {"name": "cluster", "mountPath": "/etc/virtfleet/cluster", "readOnly": True}


def render(installation: Installation) -> list[Obj]:
    wanted = installation.configuration.dashboard
    if wanted is None:
        return []
    made = deployment(
        installation,
        VIRT_DASHBOARD,
        ACCOUNT,
        args=[
            *(f"--host-name={host}" for host in wanted.hosts),
            *([f"--token-header={wanted.token_header}"] if wanted.token_header else []),
        ],
    )
    made["spec"]["replicas"] = 1
    pod = made["spec"]["template"]["spec"]
    pod["automountServiceAccountToken"] = False
    pod["volumes"].append(_AUTHORITY)
    pod["containers"][0]["volumeMounts"].append(_AUTHORITY_MOUNT)
    return [roles.service_account(installation, ACCOUNT), service(installation, VIRT_DASHBOARD), made]
