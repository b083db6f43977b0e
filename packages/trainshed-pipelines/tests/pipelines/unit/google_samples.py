"""Components in the form of Google Cloud Pipeline Components, for tests."""

from typing import Any

from trainshed_pipelines.template import structures as ir

IMAGE = "gcr.io/ml-pipeline/google-cloud-pipeline-components:2.20.0"
PACKAGE = "google_cloud_pipeline_components.container.v1"
MODEL, DATASET = ir.ArtifactType("google.VertexModel"), ir.ArtifactType("google.VertexDataset")


def component(
    module: str, *args: str, name: str = "comp-x", image: str = IMAGE, **fields: Any
) -> ir.Component:
    """Return a component that runs a module of the package."""
    command = ("python3", "-u", "-m", f"{PACKAGE}.{module}")
    container = ir.Container(image, command, args)
    return ir.Component(name=name, implementation=container, **fields)


def container(image: str, *command: str) -> ir.Component:
    return ir.Component(name="c", implementation=ir.Container(image, command))


def launcher(kind: str, module: str, *args: str, **fields: Any) -> ir.Component:
    return component(f"{module}.launcher", "--type", kind, *args, **fields)


def dataset(kind: str, method: str = "create", **fields: Any) -> ir.Component:
    words = ("--cls_name", f"{kind}Dataset", "--method_name", method)
    outputs = {"dataset": ir.OutputArtifact(DATASET)}
    return component("aiplatform.remote_runner", *words, output_artifacts=outputs, **fields)


def template(*components: ir.Component) -> ir.Template:
    root = ir.Component(name="root", implementation=ir.Dag({}))
    components_by_name = {part.name: part for part in (root, *components)}
    return ir.Template(name="t", root=root, components=components_by_name)
