"""Data of charts: parallel coordinates and parameter importance. Links of pipelines."""

from trainshed.core.resource_summary import ResourceSummary
from trainshed.wire.trainshed_v1.jobs import JobDescription, Pipeline, Trial
from trainshed_console.pages.searches import Metric, Search, importance, parallel
from trainshed_console.rendering import render


def test_parallel_coordinates_chart_draws_the_best_trial_last() -> None:
    trials = [
        Trial(number=1, parameters={"rate": 0.001, "kind": "sgd"}, value=0.5),
        Trial(number=2, parameters={"rate": 0.1, "kind": "adam"}, value=0.9),
        Trial(number=3, parameters={"rate": 0.01}, value=0.7),
    ]
    axes, lines = parallel(trials, Search(trials, (Metric("accuracy", True),), frozenset({2})))
    expected = [("rate", "0.001", "0.1"), ("kind", "adam", "sgd"), ("accuracy", "0.5", "0.9")]
    assert [(axis.name, axis.low, axis.high) for axis in axes] == expected
    assert [line.number for line in lines] == [1, 3, 2]
    assert lines[-1].is_best
    # A logarithmic axis: 0.01 is in the middle between 0.001 and 0.1.
    assert lines[1].points == "40.0,130.0 960.0,130.0"


def test_pipeline_page_links_to_its_dataset_and_model() -> None:
    place = "projects/p1/locations/us-central1"
    made = Pipeline(model=f"{place}/models/7@1")
    data = {"inputDataConfig": {"datasetId": "9"}}
    job = JobDescription(f"{place}/trainingPipelines/2", project="p1", pipeline=made, resource=data)
    html = render("_job_facts.html", {"job": job, "asked": ResourceSummary(()), "part_id": "facts"})
    for path in ("/datasets/9", "/models/7"):
        assert f'href="{path}?project=p1&amp;region=us-central1"' in html


def test_parameter_importance_excludes_correlated_parameters() -> None:
    trials = [
        Trial(
            number=n,
            parameters={"rate": n % 12, "batch": 64 if n % 12 > 5 or n % 5 == 0 else 16},
            value=n % 12,
        )
        for n in range(60)
    ]
    shares = importance(trials)
    assert list(shares) == ["rate", "batch"]
    assert shares["rate"] > 0.9 and shares["batch"] < 0.05, "on its own, it would have 0.49"
