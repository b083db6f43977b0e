"""Validation of Vertex studies: violations with their fields, and parsed specifications (spec/tuning#studies,
facts/tuning#vertex)."""

import itertools
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.specs_requests import rejected_fields
from trainshed.core.errors import InvalidRequest
from trainshed.core.specs.study import parse_study
from trainshed.core.study.spec import (
    Algorithm,
    Goal,
    MedianStopping,
    Metric,
    Noise,
    Parameter,
    ParameterType,
    Scale,
    Selection,
    StudySpec,
)

Request = dict[str, Any]
FIRST = "study_spec.parameters[0]"


def double(name: str = "x", low: float = 1.0, high: float = 2.0, **more: Any) -> Request:
    return {"parameterId": name, "doubleValueSpec": {"minValue": low, "maxValue": high}, **more}


def integer(name: str = "n", high: str = "9", **more: Any) -> Request:
    return {"parameterId": name, "integerValueSpec": {"minValue": "1", "maxValue": high}, **more}


def discrete(name: str = "d", *values: float, **more: Any) -> Request:
    return {"parameterId": name, "discreteValueSpec": {"values": list(values or (1, 2))}, **more}


def categorical(name: str = "c", *values: str, **more: Any) -> Request:
    spec = {"values": list(values or ("a", "b"))}
    return {"parameterId": name, "categoricalValueSpec": spec, **more}


def study(*parameters: Request, **spec: Any) -> Request:
    metrics = [{"metricId": "loss", "goal": "MINIMIZE"}]
    return {
        "displayName": "study",
        "studySpec": {"metrics": metrics, "parameters": list(parameters or (double(),)), **spec},
    }


def without(kind: str, **values: Any) -> Request:
    """Return a parameter `x` of this kind with only these values."""
    return {"parameterId": "x", f"{kind}ValueSpec": values}


def child(parameter: Request, **condition: Any) -> Request:
    return {"parameterSpec": parameter, **condition}


def nest(parameter: Request, **condition: Any) -> Request:
    return {**parameter, "conditionalParameterSpecs": [child(integer(), **condition)]}


def parse(request: Request) -> StudySpec:
    return parse_study(request)[1]


def violations(request: Request) -> dict[str, str]:
    return rejected_fields(lambda: parse(request))


def with_default(parameter: Request, default: Any) -> Request:
    kind = next(name for name in parameter if name.endswith("ValueSpec"))
    return study({**parameter, kind: {**parameter[kind], "defaultValue": default}})


def metrics(*entries: Request) -> Request:
    return study(metrics=list(entries))


DOUBLE, INTEGER, DISCRETE, CATEGORICAL = (
    f"{FIRST}.{kind}_value_spec" for kind in ("double", "integer", "discrete", "categorical")
)
CONDITIONAL = f"{FIRST}.conditional_parameter_specs"
A = {"values": ["a"]}
METRICS = "study_spec.metrics"
PARENT_VALUES = f"{CONDITIONAL}[0].parent_categorical_values"
MINIMIZED, MAXIMIZED = ({"metricId": "a", "goal": goal} for goal in ("MINIMIZE", "MAXIMIZE"))
SCALE_TYPE, REVERSE_LOG = f"{FIRST}.scale_type", "UNIT_REVERSE_LOG_SCALE"

ONE_FAULT: dict[str, tuple[Request, str]] = {
    "no parameters": ({**study(), "studySpec": {"metrics": [MINIMIZED]}}, "study_spec.parameters"),
    "no metrics": (study(metrics=[]), METRICS),
    "metric without id": (metrics({"goal": "MINIMIZE"}), f"{METRICS}[0].metric_id"),
    "duplicate metric": (metrics(MINIMIZED, MAXIMIZED), f"{METRICS}[1].metric_id"),
    "safety metric": (metrics({**MINIMIZED, "safetyConfig": {}}), f"{METRICS}[0].safety_config"),
    "white space in an id": (study(double("a b")), f"{FIRST}.parameter_id"),
    "zero byte in an id": (study(double("a\0")), f"{FIRST}.parameter_id"),
    "duplicate parameter ID": (study(double(), integer("x")), "study_spec.parameters[1].parameter_id"),
    "two value specs": (study({**double(), **integer("x")}), f"{FIRST}.integer_value_spec"),
    "no bounds": (study(without("double")), f"{DOUBLE}.max_value"),
    "infinite bound": (study(without("double", maxValue="Infinity")), f"{DOUBLE}.max_value"),
    "overflowing range": (study(double(low=-1.7e308, high=1.7e308)), f"{DOUBLE}.max_value"),
    "integer too large for a float": (study(integer(high=str(2**53))), f"{INTEGER}.max_value"),
    "logarithm of zero": (study(double(low=0, scaleType="UNIT_LOG_SCALE")), SCALE_TYPE),
    "reverse logarithm of -1": (study(discrete("d", -1, 1, scaleType=REVERSE_LOG)), SCALE_TYPE),
    "scale of categories": (study(categorical(scaleType="UNIT_LINEAR_SCALE")), SCALE_TYPE),
    "discrete without values": (study(without("discrete")), f"{DISCRETE}.values"),
    "discrete out of order": (study(discrete("d", 1, 3, 2)), f"{DISCRETE}.values"),
    "discrete values too close": (study(discrete("d", 1, 1 + 1e-11)), f"{DISCRETE}.values"),
    "1001 discrete values": (study(discrete("d", *range(1001))), f"{DISCRETE}.values"),
    "no categories": (study(without("categorical")), f"{CATEGORICAL}.values"),
    "duplicate category": (study(categorical("c", "a", "a")), f"{CATEGORICAL}.values[1]"),
    "default outside the bounds": (with_default(double(), 2.5), f"{DOUBLE}.default_value"),
    "default that is not a category": (with_default(categorical(), "z"), f"{CATEGORICAL}.default_value"),
    "grid of doubles": (study(algorithm="GRID_SEARCH"), "study_spec.algorithm"),
    "stopping configuration": (
        study(studyStoppingConfig={"maxNumTrials": 7}),
        "study_spec.study_stopping_config",
    ),
    "children of a double": (study(nest(double(), parentIntValues={"values": ["1"]})), CONDITIONAL),
    "child without condition": (study(nest(categorical())), PARENT_VALUES),
    "condition of another kind": (study(nest(integer("m"), parentCategoricalValues=A)), PARENT_VALUES),
    "empty condition": (study(nest(categorical(), parentCategoricalValues={})), f"{PARENT_VALUES}.values"),
    "condition outside the parent": (
        study(nest(integer("m"), parentIntValues={"values": ["1", "10"]})),
        f"{CONDITIONAL}[0].parent_int_values.values[1]",
    ),
    "child with the ID of a top-level parameter": (
        study(nest(categorical(), parentCategoricalValues=A), integer()),
        "study_spec.parameters[1].parameter_id",
    ),
}


def test_each_violation_in_a_study_request_names_the_invalid_field() -> None:
    """spec/submit#refusals, spec/tuning#studies: a request that breaks one rule has exactly one violation."""
    names = {case: [*violations(request)] for case, (request, _) in ONE_FAULT.items()}
    assert names == {case: [field] for case, (_, field) in ONE_FAULT.items()}


def test_study_error_lists_all_violations() -> None:
    """spec/submit#refusals: this includes violations of conditional parameters below an invalid one."""
    request = study(
        {"parameterId": "", "conditionalParameterSpecs": [child(double("y", low=5), parentIntValues={})]},
        metrics=[{"metricId": "a b"}],
        medianAutomatedStoppingSpec={},
        convexAutomatedStoppingSpec={},
    )
    assert set(violations({**request, "displayName": ""})) == {
        "display_name",
        f"{METRICS}[0].metric_id",
        f"{FIRST}.parameter_id",
        FIRST,
        f"{CONDITIONAL}[0].parameter_spec.double_value_spec.max_value",
        "study_spec.convex_automated_stopping_spec",
    }


def test_study_with_every_parameter_type_is_parsed() -> None:
    """spec/tuning#parameters, facts/tuning#vertex: types, scales and defaults. proto3 JSON omits bounds of
    zero."""
    spec = parse(
        study(
            {"parameterId": "x", "doubleValueSpec": {"maxValue": 1}},
            {"parameterId": "n", "integerValueSpec": {"minValue": "-3"}},
            discrete("d", 0.5, 16, scaleType="UNIT_LOG_SCALE"),
            categorical("c", "adam", "sgd"),
            double("r", scaleType=REVERSE_LOG),
            algorithm="ALGORITHM_UNSPECIFIED",
            measurementSelectionType="BEST_MEASUREMENT",
            observationNoise="HIGH",
        )
    )
    assert spec.parameters == (
        Parameter("x", ParameterType.DOUBLE, low=0, high=1),
        Parameter("n", ParameterType.INTEGER, low=-3, high=0),
        Parameter("d", ParameterType.DISCRETE, values=(0.5, 16.0), scale=Scale.LOG),
        Parameter("c", ParameterType.CATEGORICAL, categories=("adam", "sgd")),
        Parameter("r", ParameterType.DOUBLE, low=1, high=2, scale=Scale.REVERSE_LOG),
    )
    assert spec.metrics == (Metric("loss", Goal.MINIMIZE),)
    assert (spec.algorithm, spec.selection) == (Algorithm.DEFAULT, Selection.BEST)
    assert spec.noise is Noise.HIGH
    assert spec.median_stopping is None


def test_parameter_default_has_the_type_of_the_parameter() -> None:
    """facts/tuning#vertex: the default of a DISCRETE parameter is rounded to its nearest value. Unset is not
    0."""
    assert parse(with_default(double(), 1.5)).parameters[0].default == 1.5
    number = parse(with_default(integer(), "7")).parameters[0].default
    assert number == 7 and isinstance(number, int)
    assert parse(with_default(discrete("d", 1, 2, 8), 4.4)).parameters[0].default == 2.0
    assert parse(with_default(categorical(), "b")).parameters[0].default == "b"
    assert parse(study(double(low=-1))).parameters[0].default is None


def test_conditional_parameters_are_flattened_depth_first() -> None:
    """spec/tuning#parameters: a parent comes before its children. Equal IDs are valid under disjoint
    conditions."""
    units = {"parentIntValues": {"values": ["2", "3"]}}
    spec = parse(
        study(
            categorical(
                conditionalParameterSpecs=[
                    child(
                        integer("layers", conditionalParameterSpecs=[child(double("rate"), **units)]),
                        parentCategoricalValues=A,
                    ),
                    child(
                        discrete(
                            "layers",
                            2,
                            4,
                            conditionalParameterSpecs=[
                                child(double("rate"), parentDiscreteValues={"values": [4 + 1e-11]})
                            ],
                        ),
                        parentCategoricalValues={"values": ["b"]},
                    ),
                ]
            ),
            integer("last"),
        )
    )
    assert [(p.id, p.parent, p.when) for p in spec.parameters] == [
        ("c", None, ()),
        ("layers", 0, ("a",)),
        ("rate", 1, (2, 3)),
        ("layers", 0, ("b",)),
        ("rate", 3, (4.0,)),
        ("last", None, ()),
    ]


def test_parameter_condition_with_thousands_of_values_is_parsed_quickly() -> None:
    """The service parses the condition before it checks the caller's permissions (denial of service)."""
    values = {"parentDiscreteValues": {"values": [float(n % 1000) for n in range(10_000)]}}
    many = child(double("rate"), **values)
    tree = discrete("d", *range(1000), conditionalParameterSpecs=[many])
    begun = time.process_time()
    spec = parse(study(tree))
    assert time.process_time() - begun < 5
    assert len(spec.parameters[1].when) == 1000


def test_all_early_stopping_rules_become_median_stopping() -> None:
    """spec/tuning#early-stopping, facts/tuning#vertex: the service uses median stopping for all rules."""
    assert parse(study(medianAutomatedStoppingSpec={})).median_stopping == MedianStopping()
    decay = parse(study(decayCurveStoppingSpec={"useElapsedDuration": True}))
    assert decay.median_stopping == MedianStopping(use_elapsed=True)
    convex = {"maxStepCount": "100", "learningRateParameterName": "x", "useElapsedDuration": True}
    assert parse(study(convexAutomatedStoppingSpec=convex)).median_stopping == decay.median_stopping
    old = {"maxNumSteps": "100", "autoregressiveOrder": "3", "useSeconds": True}
    assert parse(study(convexStopConfig=old)).median_stopping == decay.median_stopping


def test_study_with_several_objectives_is_parsed() -> None:
    """spec/tuning#objectives: a study may have several metrics."""
    spec = parse(metrics(MINIMIZED, {"metricId": "b", "goal": "MAXIMIZE"}))
    assert spec.metrics == (Metric("a", Goal.MINIMIZE), Metric("b", Goal.MAXIMIZE))


BOUNDS = st.one_of(st.integers(-2, 9).map(float), st.floats())
SCALES = st.sampled_from(["", "UNIT_LINEAR_SCALE", "UNIT_LOG_SCALE", REVERSE_LOG])


@st.composite
def trees(draw: st.DrawFn, depth: int = 0) -> Request:
    """Generate a parameter with its children, which is valid in most cases."""
    kind = draw(st.sampled_from(["double", "integer", "discrete", "categorical"]))
    spec: Request = {}
    scaled = {"scaleType": draw(SCALES)}
    match kind:
        case "double":
            spec = {"minValue": draw(BOUNDS), "maxValue": draw(BOUNDS)}
        case "integer":
            low, high = draw(st.integers(-1, 2)), draw(st.integers(1))
            spec = {"minValue": str(low), "maxValue": str(high)}
        case "discrete":
            values = draw(st.lists(BOUNDS, max_size=3))
            spec = {"values": sorted(values), "defaultValue": draw(BOUNDS)}
        case _:
            spec, scaled = {"values": ["a", draw(st.text(max_size=1))]}, {}
    parent = "Int" if kind in ("double", "integer") else kind.capitalize()
    below: list[Request] = []
    while depth < 3 and draw(st.booleans()):
        some = {"Int": ["1"], "Discrete": spec.get("values", [])[:1]}.get(parent, ["a"])
        below.append(child(draw(trees(depth + 1)), **{f"parent{parent}Values": {"values": some}}))
    return {
        "parameterId": f"{kind}{depth}{draw(st.integers(0, 9))}",
        f"{kind}ValueSpec": spec,
        "conditionalParameterSpecs": below,
        **scaled,
    }


@given(st.lists(trees(), min_size=1, max_size=2))
def test_any_parameter_tree_is_parsed_or_rejected(given_trees: list[Request]) -> None:
    """Any request is either rejected with messages, or satisfies the invariants of `core.study.spec`."""
    try:
        spec = parse(study(*given_trees))
    except InvalidRequest as refusal:
        assert all(v.field and v.description for v in refusal.violations)
        return
    for position, parameter in enumerate(spec.parameters):
        assert parameter.parent is None or parameter.parent < position
        assert bool(parameter.when) == (parameter.parent is not None)
        least = min(parameter.values, default=parameter.low)
        most = max(parameter.values, default=parameter.high)
        assert least <= most < float("inf")
        if parameter.scale is not Scale.LINEAR:
            assert least > 0
        if parameter.type is ParameterType.DISCRETE:
            assert list(parameter.values) == sorted(set(parameter.values))
            assert parameter.default in parameter.values


@st.composite
def choices(draw: st.DrawFn, depth: int = 0) -> Request:
    """Generate a categorical tree in which some parameters have equal IDs."""
    below: list[Request] = []
    while depth < 2 and len(below) < 2 and draw(st.booleans()):
        values = draw(st.sampled_from([["a"], ["b"], ["a", "b"]]))
        below.append(child(draw(choices(depth + 1)), parentCategoricalValues={"values": values}))
    return categorical(draw(st.sampled_from("xyz")), conditionalParameterSpecs=below)


def flat(tree: Request, parent: int, when: list[str], out: list[tuple[str, int, list[str]]]) -> None:
    out.append((tree["parameterId"], parent, when))
    place = len(out) - 1
    for item in tree["conditionalParameterSpecs"]:
        flat(item["parameterSpec"], place, item["parentCategoricalValues"]["values"], out)


def has_clash(nodes: list[tuple[str, int, list[str]]]) -> bool:
    """Return whether any assignment activates two parameters with the same ID. Tries all assignments."""
    for chosen in itertools.product("ab", repeat=len(nodes)):
        active: list[bool] = []
        for _, parent, when in nodes:
            active.append(parent == -1 or (active[parent] and chosen[parent] in when))
        ids = [name for (name, _, _), is_active in zip(nodes, active, strict=True) if is_active]
        if len(ids) != len(set(ids)):
            return True
    return False


@given(choices())
def test_duplicate_ids_are_rejected_only_if_both_parameters_can_be_active_together(tree: Request) -> None:
    """facts/tuning#vertex: parameters with the same ID require disjoint conditions at some level of the
    tree."""
    nodes: list[tuple[str, int, list[str]]] = []
    flat(tree, -1, [], nodes)
    if has_clash(nodes):
        assert all(field.endswith("parameter_id") for field in violations(study(tree)))
    else:
        assert len(parse(study(tree)).parameters) == len(nodes)
