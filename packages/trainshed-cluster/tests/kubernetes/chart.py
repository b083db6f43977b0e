"""Renders the chart deploy/chart like helm, with support for the few template functions that the chart
uses."""

import hashlib
import json
import re
import textwrap
from typing import Any

import yaml

from tests.sources import ROOT

CHART = ROOT / "deploy" / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def render_chart(**values: Any) -> list[dict[str, Any]]:
    """Return the YAML documents that `helm install trainshed deploy/chart --namespace training` renders with
    these `values`."""
    unknown = values.keys() - VALUES.keys()
    assert not unknown, unknown
    documents: list[dict[str, Any]] = []
    for template in sorted((CHART / "templates").iterdir()):
        text = _fill_in(_apply_conditions(template.read_text(), VALUES | values), VALUES | values)
        assert "{{" not in text, f"{template}: not supported by chart.py"
        documents += filter(None, yaml.safe_load_all(text))
    return documents


def _apply_conditions(text: str, values: dict[str, Any]) -> str:
    """Return the lines whose conditions are true."""
    holds: list[bool] = []
    lines: list[str] = []
    for line in text.splitlines():
        if condition := re.fullmatch(r"\{\{- if (not )?\.Values\.(\w+) \}\}", line):
            holds.append(bool(values[condition[2]]) != bool(condition[1]))
        elif line == "{{- end }}":
            holds.pop()
        elif all(holds):
            lines.append(line)
    return "\n".join(lines)


def _fill_in(text: str, values: dict[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        filled = str(values[match[1]])
        if match[2] == "sha256sum":
            return hashlib.sha256(filled.encode()).hexdigest()
        return json.dumps(filled) if match[2] == "quote" else filled

    def block(match: re.Match[str]) -> str:
        return "\n" + textwrap.indent(values[match[1]], "    ")

    text = text.replace("{{ .Release.Namespace }}", "training")
    text = re.sub(r"\n *\{\{- \.Values\.(\w+) \| nindent 4 \}\}", block, text)
    return re.sub(r"\{\{ \.Values\.(\w+)(?: \| (quote|sha256sum))? \}\}", value, text)
