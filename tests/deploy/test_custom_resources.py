"""Examples of custom resources, checked with the models of their projects or our schema."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manifests import KUBERNETES, Manifest, is_core, kustomize, lost

pytestmark = pytest.mark.real

MODELS = {
    "JobSet": "jobset_v1alpha2_job_set.JobsetV1alpha2JobSet",
    "TrainJob": "trainer_v1alpha1_train_job.TrainerV1alpha1TrainJob",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime.TrainerV1alpha1TrainingRuntime",
}
EXAMPLE = {"JobSet": "jobset", "TrainJob": "trainjob", "TrainingRuntime": "trainjob", "PyTorchJob": "pytorchjob"}


def by_model(path: str) -> Callable[[Manifest], Any]:
    """Parse a manifest with its project's model: unknown fields are lost, defaults are added."""
    pytest.importorskip("kubeflow_trainer_api", reason="kubeflow-trainer-api: pip install -e .[deploy]")
    module, _, name = path.partition(".")
    model = getattr(importlib.import_module(f"kubeflow_trainer_api.models.{module}"), name)

    def read(manifest: Manifest) -> Any:
        return model.from_dict(manifest).to_dict()

    return read


def built(kind: str) -> Manifest:
    rows = kustomize(KUBERNETES / "examples" / EXAMPLE[kind])
    return next(row for row in rows if row["kind"] == kind)


@pytest.mark.parametrize("kind", MODELS)
def test_project_model_knows_every_field(kind):
    manifest = built(kind)
    assert lost(manifest, by_model(MODELS[kind])(manifest)) == []


def test_unknown_field_is_found():
    manifest = built("JobSet")
    manifest["spec"]["replicaedJobs"] = []
    assert lost(manifest, by_model(MODELS["JobSet"])(manifest)) == ["/spec/replicaedJobs"]


def schema_faults(manifest: Manifest) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema: pip install -e .[deploy]")
    schema = json.loads((Path(__file__).parent / "pytorchjob.schema.json").read_text(encoding="utf-8"))
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(manifest)]


def test_pytorchjob_fits_its_schema():
    assert schema_faults(built("PyTorchJob")) == []


def test_a_pytorchjob_without_the_container_that_its_operator_wants_does_not():
    manifest = built("PyTorchJob")
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "main"
    assert schema_faults(manifest)


def test_every_custom_resource_of_the_examples_is_checked():
    folders = sorted(path.parent for path in (KUBERNETES / "examples").glob("*/kustomization.yaml"))
    kinds = {row["kind"] for folder in folders for row in kustomize(folder) if not is_core(row)}
    assert kinds == set(EXAMPLE)
