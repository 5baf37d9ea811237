"""The manifests of the example fit together, and their commands are commands of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from click import Context

from tacit.cli.submit import submit

FOLDER = Path(__file__).parents[3] / "examples" / "kubernetes"


def read(name: str) -> list[dict[str, Any]]:
    """The objects of a file."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pods() -> list[dict[str, Any]]:
    """The templates of all pods."""
    kinds = ("Deployment", "Job")
    every = read("flink-session.yaml") + read("tacit-submit.yaml")
    return [one["spec"]["template"] for one in every if one["kind"] in kinds]


def test_every_pod_has_the_folder_under_the_same_path() -> None:
    assert len(pods()) == 3
    for pod in pods():
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
            assert mounts.keys() == volumes.keys()
            assert mounts["tacit"] == "/tacit"
        assert volumes["tacit"]["persistentVolumeClaim"]["claimName"] == "tacit"


def test_selectors_find_their_pods() -> None:
    labels = [pod["metadata"]["labels"] for pod in pods()]
    for one in read("flink-session.yaml"):
        if one["kind"] == "Deployment":
            chosen = one["spec"]["selector"]["matchLabels"]
            assert chosen == one["spec"]["template"]["metadata"]["labels"]
        if one["kind"] == "Service":
            assert sum(one["spec"]["selector"].items() <= label.items() for label in labels) == 1
        if one["kind"] == "NetworkPolicy":
            chosen = one["spec"]["podSelector"]["matchLabels"]
            assert all(chosen.items() <= label.items() for label in labels)


def test_the_command_that_submits_is_understood() -> None:
    container = pods()[-1]["spec"]["containers"][0]
    assert container["command"] == ["tacit", "submit"]
    parsed = Context(submit, help_option_names=["-h", "--help"])
    submit.parse_args(parsed, list(container["args"]))
    assert parsed.params["detach"]
    assert parsed.params["cluster"] == "flink-jobmanager:8081"
    assert parsed.params["folder"].is_relative_to("/tacit")
    cluster = {one["kind"]: one for one in read("flink-session.yaml")}
    service = cluster["Service"]
    assert 8081 in {one["port"] for one in service["spec"]["ports"]}
    config = yaml.safe_load(cluster["ConfigMap"]["data"]["config.yaml"])
    assert config["jobmanager.rpc.address"] == service["metadata"]["name"]
