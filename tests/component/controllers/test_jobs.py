"""Jobs: pods until enough have succeeded or too many have failed, each counted once."""

from __future__ import annotations

from typing import Any

import pytest
from local_cluster import Cluster

from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import JOBS, PODS, Obj
from virtfleet.local.controllers import jobs


def a_job(**spec: Any) -> Obj:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}], **spec.pop("pod", {})}
    return {"metadata": {"name": "j"}, "spec": {"template": {"spec": pod}, **spec}}


async def running(cluster: Cluster, count: int) -> list[Obj]:
    """The job's running pods, once there are so many."""

    async def check() -> list[Obj] | None:
        pods = [p for p in await cluster.api.list(PODS, "default") if "deletionTimestamp" not in p["metadata"]]
        pods = [p for p in pods if p["status"]["phase"] == "Running"]
        return pods if len(pods) == count else None

    found: list[Obj] = await cluster.until(check)
    return found


async def end(cluster: Cluster, pod: Obj, phase: str = "Succeeded") -> None:
    patch = {"status": {"phase": phase, "conditions": [{"type": "Ready", "status": "False"}]}}
    name = pod["metadata"]["name"]
    await cluster.api.patch(PODS, name, patch, "default", how=Patch.STRATEGIC, subresource="status")


async def status(cluster: Cluster, **wanted: Any) -> Obj:
    """The job's status, once it says so."""

    async def check() -> Obj | None:
        now: Obj = (await cluster.api.get(JOBS, "j", "default")).get("status", {})
        said = {c["type"]: c.get("reason") for c in now.get("conditions", ()) if c["status"] == "True"}
        good = all(now.get(field, 0) == value for field, value in wanted.items() if field[0].islower())
        return now if good and all(said.get(k) == v for k, v in wanted.items() if k[0].isupper()) else None

    found: Obj = await cluster.until(check)
    return found


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FIRST_RETRY", 0.01)


async def test_a_job_runs_so_many_at_once_until_enough_have_succeeded(cluster: Cluster) -> None:
    made = await cluster.api.create(JOBS, a_job(parallelism=2, completions=3), "default")
    assert made["spec"]["selector"]["matchLabels"] == {"batch.kubernetes.io/controller-uid": made["metadata"]["uid"]}
    one, two = await running(cluster, 2)
    assert one["metadata"]["labels"]["job-name"] == "j"
    await status(cluster, active=2, ready=2)
    await end(cluster, one)
    await status(cluster, active=2, succeeded=1)
    for pod in await running(cluster, 2):
        await end(cluster, pod)
    done = await status(cluster, succeeded=3, active=0, Complete="CompletionsReached")
    assert done["completionTime"] >= done["startTime"]
    assert two["metadata"]["name"] in {p["metadata"]["name"] for p in await cluster.api.list(PODS, "default")}

    async def let_go() -> bool:
        return not any(p["metadata"].get("finalizers") for p in await cluster.api.list(PODS, "default"))

    await cluster.until(let_go)


async def test_what_was_counted_stays_counted_when_its_pod_goes(cluster: Cluster) -> None:
    await cluster.api.create(JOBS, a_job(completions=2), "default")
    (pod,) = await running(cluster, 1)
    await end(cluster, pod)
    await cluster.api.delete(PODS, pod["metadata"]["name"], "default")
    await cluster.gone(PODS, pod["metadata"]["name"])
    await status(cluster, succeeded=1, active=1)
    await cluster.stop()
    (pod,) = await running(cluster, 1)
    await end(cluster, pod)
    await cluster.api.delete(PODS, pod["metadata"]["name"], "default", grace=0)
    cluster.start()
    await status(cluster, succeeded=2, Complete="CompletionsReached")


async def test_a_pod_that_fails_or_is_deleted_is_replaced_until_the_limit(cluster: Cluster) -> None:
    await cluster.api.create(JOBS, a_job(backoffLimit=1, parallelism=2, completions=4), "default")
    one, _ = await running(cluster, 2)
    await cluster.api.delete(PODS, one["metadata"]["name"], "default", grace=0)
    await status(cluster, failed=1, active=2)
    one, two = await running(cluster, 2)
    await end(cluster, one, "Failed")
    await status(cluster, failed=2, active=0, Failed="BackoffLimitExceeded")
    await cluster.gone(PODS, two["metadata"]["name"])


async def test_restarts_of_containers_count_as_failures(cluster: Cluster) -> None:
    await cluster.api.create(JOBS, a_job(backoffLimit=2, pod={"restartPolicy": "OnFailure"}), "default")
    (pod,) = await running(cluster, 1)
    again = {"status": {"containerStatuses": [{"name": "c", "restartCount": 2, "image": "i", "imageID": ""}]}}
    await cluster.api.patch(PODS, pod["metadata"]["name"], again, "default", subresource="status")
    await status(cluster, active=0, Failed="BackoffLimitExceeded")


async def test_a_deadline_ends_a_job_and_a_time_to_live_deletes_it(cluster: Cluster) -> None:
    # Objects have whole seconds, so the first of these may be over at once.
    await cluster.api.create(JOBS, a_job(activeDeadlineSeconds=2, ttlSecondsAfterFinished=1), "default")
    (pod,) = await running(cluster, 1)
    await status(cluster, active=0, Failed="DeadlineExceeded")
    await cluster.gone(PODS, pod["metadata"]["name"])
    await cluster.gone(JOBS, "j")


async def test_without_a_number_one_that_succeeds_says_that_all_is_done(cluster: Cluster) -> None:
    await cluster.api.create(JOBS, a_job(parallelism=2), "default")
    one, two = await running(cluster, 2)
    await end(cluster, one)
    await status(cluster, succeeded=1, active=1)
    await end(cluster, two, "Failed")
    await status(cluster, succeeded=1, failed=1, active=0, Complete="CompletionsReached")


async def test_a_deleted_job_takes_its_pods_along(cluster: Cluster) -> None:
    await cluster.api.create(JOBS, a_job(), "default")
    (pod,) = await running(cluster, 1)
    await cluster.api.delete(JOBS, "j", "default")
    await cluster.gone(JOBS, "j")
    await cluster.gone(PODS, pod["metadata"]["name"])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"completionMode": "Indexed"}, "spec.completionMode"),
        ({"suspend": True}, "spec.suspend"),
        ({"podFailurePolicy": {"rules": []}}, "spec.podFailurePolicy: Forbidden: this API server does not do that"),
        ({"parallelism": -1}, "spec.parallelism"),
        ({"template": {}}, "spec.template.spec.containers: Required value"),
        ({"pod": {"restartPolicy": "Always"}}, 'valid values: "OnFailure", "Never"'),
    ],
)
async def test_what_no_job_here_does_is_refused(cluster: Cluster, spec: Any, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        await cluster.api.create(JOBS, a_job(**spec), "default")
    assert words in refused.value.message


async def test_how_many_is_one_where_nobody_says_and_whatever_the_first_says_where_all_do_the_same(
    cluster: Cluster,
) -> None:
    plain = (await cluster.api.create(JOBS, a_job(), "default", dry_run=True))["spec"]
    assert (plain["parallelism"], plain["completions"]) == (1, 1)
    queue = (await cluster.api.create(JOBS, a_job(parallelism=3), "default", dry_run=True))["spec"]
    assert (queue["parallelism"], "completions" in queue) == (3, False)
    with pytest.raises(ApiError, match=r"spec\.template\.spec\.containers: Required value"):
        await cluster.api.create(JOBS, {"metadata": {"name": "j"}}, "default")


async def test_a_jobs_pods_cannot_be_changed(cluster: Cluster) -> None:
    await cluster.api.create(JOBS, a_job(), "default")
    change = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "other"}]}}}}
    with pytest.raises(ApiError, match="field is immutable"):
        await cluster.api.patch(JOBS, "j", change, "default", how=Patch.STRATEGIC)
