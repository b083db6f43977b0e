"""Compiled pipelines of `trainshed run --array` and `--schedule`."""

import json
from typing import Any

import pytest

from trainshed.cli.run.templates import Array, one_task_template

INDEX = "{{$.inputs.parameters['index']}}"


def custom_job(**container: Any) -> dict[str, Any]:
    return {
        "displayName": "My train",
        "jobSpec": {
            "workerPoolSpecs": [{"replicaCount": "1", "containerSpec": {"imageUri": "i", **container}}],
            "baseOutputDirectory": {"outputUriPrefix": "gs://b/out"},
        },
    }


def payload_of(template: dict[str, Any]) -> dict[str, Any]:
    """Return the job of a template's task, after the replacement of the index by 7."""
    args = template["deploymentSpec"]["executors"]["exec-job"]["container"]["args"]
    text = args[args.index("--payload") + 1]
    return json.loads(text.replace(INDEX, "7").replace("{{$.pipeline_job_name}}", "run-1"))


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("3", Array((3,))),
        ("0-9:4", Array((0, 4, 8))),
        ("7,1-2,1%20", Array((1, 2, 7), 20)),
        ("0-1999", Array(tuple(range(2_000)))),
    ],
)
def test_indices_are_read(text: str, array: Array) -> None:
    assert Array.parse(text) == array


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'' is neither an index nor a range"),
        ("0-9:0", "'0-9:0' is neither"),
        ("5-1", "the range 5-1 is empty"),
        ("0-9%0", "'0' after % is not a positive number"),
        ("0-2000", "at most 2,000 indices"),
        ("0-999999999", "at most 2,000 indices"),
    ],
)
def test_invalid_indices_are_rejected(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Array.parse(text)


def test_template_of_one_task_runs_the_job_with_its_launcher() -> None:
    template = one_task_template(custom_job(args=["--lr", "0.1"]))
    assert template["pipelineInfo"] == {"name": "my-train"}
    assert template["root"]["dag"]["tasks"] == {
        "my-train": {"componentRef": {"name": "comp-job"}, "taskInfo": {"name": "my-train"}}
    }
    component = template["components"]["comp-job"]
    assert component["outputDefinitions"]["parameters"].keys() == {"gcp_resources"}
    container = template["deploymentSpec"]["executors"]["exec-job"]["container"]
    assert container["image"].startswith("gcr.io/ml-pipeline/google-cloud-pipeline-components:")
    assert container["command"][-1].endswith(".v1.custom_job.launcher")
    assert container["args"][:3] == ["--type", "CustomJob", "--payload"]
    assert container["args"][4:] == [
        *("--project", "{{$.pipeline_google_cloud_project_id}}"),
        *("--location", "{{$.pipeline_google_cloud_location}}"),
        *("--gcp_resources", "{{$.outputs.parameters['gcp_resources'].output_file}}"),
    ]
    assert payload_of(template) == custom_job(args=["--lr", "0.1"])


def test_array_is_a_loop_with_the_index_in_variables_arguments_and_output() -> None:
    job = custom_job(args=["--seed={index}", "{{index}}"], env=[{"name": "A", "value": "x{index}"}])
    template = one_task_template(job, Array((0, 3), 2))
    (task,) = template["root"]["dag"]["tasks"].values()
    assert task["parameterIterator"] == {"itemInput": "index", "items": {"raw": "[0, 3]"}}
    assert task["iteratorPolicy"] == {"parallelismLimit": 2}
    inputs = template["components"]["comp-job"]["inputDefinitions"]["parameters"]
    assert inputs == {"index": {"parameterType": "NUMBER_INTEGER"}}
    payload = payload_of(template)
    assert payload["displayName"] == "My train-7"
    spec = payload["jobSpec"]
    assert spec["baseOutputDirectory"] == {"outputUriPrefix": "gs://b/out/7"}
    container = spec["workerPoolSpecs"][0]["containerSpec"]
    assert container["args"] == ["--seed=7", "{index}"]
    assert container["env"] == [
        {"name": "A", "value": "x7"},
        {"name": "TRAINSHED_ARRAY_INDEX", "value": "7"},
        {"name": "TRAINSHED_ARRAY_COUNT", "value": "2"},
    ]


def test_index_in_name_and_output_stays_where_the_user_put_it() -> None:
    job: dict[str, Any] = custom_job() | {"displayName": "seed {index}"}
    job["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"] = "gs://b/{index}/out"
    payload = payload_of(one_task_template(job, Array((7,))))
    assert payload["displayName"] == "seed 7"
    assert payload["jobSpec"]["baseOutputDirectory"] == {"outputUriPrefix": "gs://b/7/out"}


def test_texts_of_the_user_do_not_become_placeholders() -> None:
    texts = ["{{$.inputs.parameters['x']}}", "{{$}}", r"\u0000index\u0000", '"{{$.a}}"', "ü"]
    template = one_task_template(custom_job(args=texts), Array((7,)))
    args = template["deploymentSpec"]["executors"]["exec-job"]["container"]["args"]
    assert args[3].count("{{$") == args[3].count(INDEX) == 3
    assert payload_of(template)["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["args"] == texts
