"""The files of examples/cluster are what Ray and Kubernetes take, and docs/cluster.md says what was measured."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

ray = pytest.importorskip("ray")
yaml = pytest.importorskip("yaml")

import cluster as measuring  # noqa: E402  # benchmarks/ is no package

FILES = ROOT / "examples" / "cluster"


def test_ray_takes_its_cluster_file() -> None:
    import jsonschema

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    document = yaml.safe_load((FILES / "ray.yaml").read_text())
    jsonschema.validate(document, schema)
    assert len(document["provider"]["worker_ips"]) == document["max_workers"]
    assert any("--head" in line for line in document["head_start_ray_commands"])
    assert all("USAGE_STATS_ENABLED=0" in line for name in ("head", "worker") for line in starts(document, name))
    [install] = document["setup_commands"]
    assert set(re.findall(r"\[(.*)\]", install)[0].split(",")) <= extras()


def starts(document: dict[str, Any], name: str) -> list[str]:
    return [line for line in document[f"{name}_start_ray_commands"] if "ray start" in line]


def extras() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    return set(re.findall(r"^([a-z-]+) = \[", text.split("[project.optional-dependencies]")[1].split("\n[")[0], re.M))


@pytest.fixture(scope="module")
def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FILES / "kuberay.yaml").read_text()))


def test_the_manifest_has_what_kuberay_needs(kubernetes: list[dict[str, Any]]) -> None:
    job, service = kubernetes
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    assert tuple(map(int, spec["rayVersion"].split("."))) >= (2, 50)
    [workers] = spec["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    pods = [group["template"]["spec"] for group in (spec["headGroupSpec"], workers)]
    for pod in pods:
        [container] = pod["containers"]
        assert set(container["resources"]) == {"requests", "limits"}
        volumes = {each["name"] for each in pod["volumes"]}
        assert {each["name"] for each in container["volumeMounts"]} <= volumes
        assert all(each["readOnly"] for each in container["volumeMounts"])
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"]
    assert len({pod["containers"][0]["image"] for pod in pods}) == 1  # one bpr, one Ray, one Python
    assert service["kind"] == "Service" and service["spec"]["selector"] == {"ray.io/node-type": "head"}
    names = {each["name"] for each in pods[0]["containers"][0]["ports"]}
    assert {each["targetPort"] for each in service["spec"]["ports"]} <= names


def test_the_manifest_starts_a_front_that_exists(kubernetes: list[dict[str, Any]]) -> None:
    command, verb, folder, *options = shlex.split(kubernetes[0]["spec"]["entrypoint"])
    assert (command, verb, folder) == ("bpr", "serve", "/data/shards")
    from typer.testing import CliRunner

    from bpr.cli import app

    shown = CliRunner().invoke(app, ["serve", "--help"]).output
    assert all(each in shown for each in options if each.startswith("--"))
    assert "--token-file" in options  # other machines reach it


# ── What it costs ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_model_of_the_results_is_what_was_planned_with() -> None:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results/cluster.json").read_text(encoding="utf-8"))
    model = measuring.model_of(found)
    for plan in found["plans"].values():
        assert 1000 * model.seconds(plan["passages"], plan["nodes"]) == pytest.approx(plan["p50"])
    assert {(each["shards"], each["questions"]) for each in found["runs"]} == {
        (n, q) for n in (1, 2, 4) for q in (1, 64)
    }


def test_the_model_adds_up() -> None:
    import numpy as np

    how = argparse.Namespace(memory=16.0, target=100.0, node_hour=0.5)
    spread = np.array([1.0, 1.0, 1.0, 2.0])
    model = measuring.Model((0.001, 1e-8), (0.002, 0.001), (0.0, 0.0001), 0.0000128)
    one = measuring.planned(10**6, model, spread, how)
    assert one.nodes == 1 and one.p50 == pytest.approx(1 + 10 + 2 + 1 + 0.1 + 0.0128)
    assert one.hour == 0.5 and one.bytes_per_node == 96e6
    more = measuring.planned(10**8, model, spread, how)
    assert more.nodes > one.nodes and more.p50 <= 100 < more.p99  # some are late, and a search waits for the last
    quick = measuring.Model((0.0, 1e-12), (0.0, 0.001), (0.0, 0.0), 0.0)
    least = measuring.planned(10**10, quick, spread, how)
    assert least.nodes * 0.7 * 16 * 2**30 >= 96 * 10**10  # the codes must fit, however fast it is


def test_a_line_goes_through_its_points() -> None:
    assert measuring.line({1: 3.0, 2: 5.0, 4: 9.0}) == pytest.approx((1.0, 2.0))
