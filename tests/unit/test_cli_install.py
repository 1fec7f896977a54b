"""`virtfleet install` and `uninstall`: what people read who give wrong files, or press ^C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from virtfleet.cli import install
from virtfleet.cli.main import main


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, arguments)


def kubevirt(file: Path, namespace: str, spec: dict[str, Any]) -> str:
    meta = {"name": "kubevirt", "namespace": namespace}
    file.write_text(json.dumps({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": meta, "spec": spec}))
    return str(file)


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_an_interrupted_command_says_what_goes_on(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(install, "with_cluster", interrupted)
    done = run(command)
    assert done.exit_code == 130
    assert "goes on" in done.stderr and "Repeat the command" in done.stderr


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_without_a_cluster_it_says_how_to_name_one(command: str, tmp_path: Path) -> None:
    done = run(command, "--kubeconfig", str(tmp_path / "none"))
    assert done.exit_code == 1
    assert "none: no such file" in done.stderr and "--kubeconfig" in done.stderr


def test_a_kubevirt_object_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    elsewhere = run("install", "--kubevirt", kubevirt(tmp_path / "a", "other", {}))
    assert elsewhere.exit_code == 1 and "in the namespace kubevirt" in elsewhere.stderr
    wrong = run("install", "--kubevirt", kubevirt(tmp_path / "b", "kubevirt", {"infra": {"replicas": "two"}}))
    assert wrong.exit_code == 1 and "spec.infra.replicas" in wrong.stderr
