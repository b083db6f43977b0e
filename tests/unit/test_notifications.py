"""Recipients, contents and retries of notifications about jobs (docs/notifications.md)."""

import json

import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, WORKER, Life, job
from trainshed.core.capacity import QuotaKey
from trainshed.core.notifications import LABEL, Occasion, Target, budget_notices, mail_of, notifications
from trainshed.core.usage import Budget
from trainshed.notifying.targets import key_of
from trainshed.serve.setting_types import NotifyTables, convert

ALL = frozenset(Occasion)
OPS = Target("ops", ALL)
EVERYBODY = Target("all", ALL, every_job=True)
LABELLED = replace(job(), labels=((LABEL, "ops"),))


def sent_notifications(life: Life, *targets: Target) -> list[tuple[str, str]]:
    sent = notifications(life.job, life.timeline, targets, life.now, "https://t.example")
    return [(notification.target, notification.occasion.value) for notification in sent]


def test_end_of_a_job_is_sent_to_labelled_targets_and_to_targets_for_all_jobs() -> None:
    over = Life(LABELLED).up().exits(code=1).up()
    assert sent_notifications(over, OPS, EVERYBODY) == [("ops", "failed"), ("all", "failed")]
    assert sent_notifications(Life(job()).up().exits(code=0).up(), OPS, EVERYBODY) == [("all", "succeeded")]
    assert sent_notifications(Life(LABELLED).up(), OPS, EVERYBODY) == [], "it runs"
    assert sent_notifications(over, replace(OPS, on=frozenset({Occasion.SUCCEEDED}))) == []


def test_stalled_replica_causes_a_notification_before_the_job_ends() -> None:
    stalled = Life(replace(job(1, 1), labels=LABELLED.labels)).up()
    stalled.exits(WORKER, signal=9, stalled=True)
    assert sent_notifications(stalled, OPS)[0] == ("ops", "stalled")


def test_mail_subject_is_a_single_line_with_job_name_and_event() -> None:
    in_two_lines = replace(LABELLED, display_name="two\nlines")
    over = Life(in_two_lines).up().exits(code=1, tail="ValueError: no").up()
    (notification,) = notifications(over.job, over.timeline, (OPS,), over.now, "https://t.example")
    subject, text = mail_of(json.loads(notification.content))
    assert subject == "two lines failed"
    assert "ValueError: no" in text and f"https://t.example/jobs/{over.job.uid}" in text


def test_error_of_the_notify_settings_tables_lists_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD", "whsec_!!")
    rows = [
        {"name": "ops", "webhook": "https://a.example/x"},
        {"name": "Ops!", "webhook": "ftp://a", "colour": 1},
        {"name": "x", "mail": ["nobody"], "jobs": "some", "budgets": [0]},
        {"name": "z", "webhook": "http://a?@", "secret_env": "BAD", "mail": ["a@b.example"]},
        {"name": "n"},
        {"name": "ops", "mail": ["a@b.example"]},
        {"name": "o", "webhook": "http://ana:x@a", "on": ["ended"]},
    ]
    with pytest.raises(ValueError, match="colour") as wrong:
        convert("notify", NotifyTables, rows)
    assert [line.split(":")[0] for line in str(wrong.value).splitlines()] == [
        "notify[1].name",
        "notify[1].colour",
        "notify[2].mail[0]",
        "notify[2].jobs",
        "notify[2].budgets[0]",
        "notify[3].secret_env",
        "notify[3].webhook",
        "notify[4].webhook",
        "notify[6].webhook",
        "notify[6].on",
        "notify",
    ]


def test_webhook_secret_with_the_prefix_whsec_is_decoded_as_base64() -> None:
    assert key_of("whsec_a2V5") == b"key"
    assert key_of("a2V5") == b"a2V5"


def test_target_is_notified_of_hard_budgets_and_the_highest_reached_percentage() -> None:
    soft = Budget(QuotaKey("p", "global", "cost_per_month"), 100, 92, marks=(50, 80, 90))
    hard = Budget(QuotaKey("p", "global", "cost_per_month_hard", "a@x"), 90, 90, marks=(100,))
    early, late = replace(OPS, budgets=(50, 80)), Target("late", ALL, budgets=(95,))
    notices = budget_notices((soft, hard), CREATED, (early, late, EVERYBODY), CREATED)
    contents = [
        (notice.notification.target, json.loads(notice.notification.content)["data"]) for notice in notices
    ]
    assert [(target, data["metric"], data["percent"]) for target, data in contents] == [
        ("ops", "cost_per_month", 80),
        ("ops", "cost_per_month_hard", 100),
        ("late", "cost_per_month_hard", 100),
    ]
    subject, text = mail_of(json.loads(notices[1].notification.content))
    assert subject == "a@x in p: 100 % of cost_per_month_hard"
    assert "a@x in p has used 90 of 90 cost_per_month_hard.\nRunning jobs release their nodes" in text
