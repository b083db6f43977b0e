"""Example commands for new users, complete for this service: they can be pasted into a terminal."""

from trainshed.console.facts import Facts

_IMAGE = "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest"


def snippets(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of each example."""
    project, region = facts.project or "trainshed", facts.region or "us-central1"
    enter = 'eval "$(trainshed env)"'
    return (
        ("This service’s own command", "trainshed run task.py --watch"),
        (
            "gcloud",
            f"{enter}\n"
            f"gcloud ai custom-jobs create --region={region} --display-name=hello \\\n"
            "  --worker-pool-spec=machine-type=n1-standard-4,replica-count=1,"
            f"container-image-uri={_IMAGE} \\\n"
            "  --command=python3 --args=-c,'print(\"hello\")'",
        ),
        (
            "Python, with the Vertex SDK",
            f"{enter}\npython3 - <<'END'\n"
            "import os\n"
            "from google.cloud import aiplatform\n\n"
            f'aiplatform.init(project="{project}", location="{region}",\n'
            f'                staging_bucket="gs://{facts.bucket}",\n'
            f'                api_endpoint="{facts.address}", api_transport="rest")\n'
            'aiplatform.CustomJob("hello", [{\n'
            '    "machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1,\n'
            f'    "container_spec": {{"image_uri": "{_IMAGE}",\n'
            '                       "command": ["python3", "-c", "print(\'hello\')"]}}]).run()\nEND',
        ),
    )
