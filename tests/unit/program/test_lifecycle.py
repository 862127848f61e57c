"""Lifecycle rules that harm a log, and the archive for an issue report."""

from __future__ import annotations

import datetime
import json
import tarfile
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.unit.cli.building import made
from tiered.cli.doctor import check_lifecycle_rules
from tiered.cli.main import run

ABORT = {"ID": "abort", "Status": "Enabled", "Filter": {}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}
ON = {"ID": "r", "Status": "Enabled"}


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({**ON, "Filter": {}, "Expiration": {"Days": 30}}, "deletes objects of the log after 30 days"),
        ({**ON, "Prefix": "pro", "Expiration": {"Date": datetime.date(2027, 1, 2)}}, "of the log on 2027-01-02"),
        ({**ON, "Filter": {"Prefix": "prod/topics/"}, "Expiration": {"Days": 1}}, "after 1 days"),
        ({**ON, "Filter": {"And": {"Prefix": "prod/"}}, "Expiration": {"Days": 1}}, "after 1 days"),
        ({**ON, "Filter": {"Prefix": "prod/probe/"}, "Expiration": {"Days": 1}}, ""),
        ({**ON, "Filter": {"Prefix": "other/"}, "Expiration": {"Days": 1}}, ""),
        ({**ON, "Status": "Disabled", "Filter": {}, "Expiration": {"Days": 1}}, ""),
        ({**ON, "Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}}, ""),
        ({**ON, "Filter": {}, "Transitions": [{"Days": 9, "StorageClass": "GLACIER"}]}, "moves objects to GLACIER"),
        ({**ON, "Filter": {}, "Transitions": [{"Days": 9, "StorageClass": "GLACIER_IR"}]}, ""),
        ({**ON, "Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 19}}, "old versions after 19 days"),
        ({**ON, "Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 20}}, ""),
        ({**ON, "NoncurrentVersionExpiration": {"NoncurrentDays": 7, "NewerNoncurrentVersions": 1}}, ""),
    ],
)
def test_a_rule_is_named_with_what_it_does(rule: dict[str, Any], text: str) -> None:
    found = check_lifecycle_rules([ABORT, rule], "acme", "prod/")
    assert len(found) == bool(text)
    for each in found:
        assert text in each.text
        assert each.deletes == ("deletes objects" in each.text)
        assert "--bucket acme" in each.hint


@pytest.mark.parametrize("rules", [[], [{**ABORT, "Filter": {"Prefix": "prod/topics/"}}]])
def test_unfinished_uploads_need_a_rule_for_the_whole_log(rules: list[dict[str, Any]]) -> None:
    (found,) = check_lifecycle_rules(rules, "acme", "prod/")
    assert (found.deletes, found.text.startswith("no rule aborts unfinished uploads")) == (False, True)


def test_doctor_reads_the_rules_of_a_bucket(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as url:
        make_bucket(url, "acme")
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")

        def lines(*rules: dict[str, Any]) -> list[str]:
            if rules:
                configuration: Any = {"Rules": list(rules)}
                client.put_bucket_lifecycle_configuration(Bucket="acme", LifecycleConfiguration=configuration)
            run(["doctor", "--remote", f"s3://acme/p?endpoint={url}", "--json"])
            checks = json.loads(capsys.readouterr().out)["checks"]
            return [f"{each['state']} {each['found']}" for each in checks if each["name"] == "lifecycle"]

        assert lines() == ["warn no rule aborts unfinished uploads, and their parts are paid for"]
        abort = {**ABORT, "Filter": {"Prefix": ""}}
        assert lines(abort) == ["ok no rule deletes what the log needs"]
        harm = {**ON, "Filter": {"Prefix": "p/"}, "Expiration": {"Days": 3}}
        assert lines(abort, harm) == [
            "fail rule r deletes objects of the log after 3 days: only `tiered maintain` knows which may go"
        ]


def test_a_bundle_has_no_records_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "log")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("TIERED_ENDPOINT_URL", "http://user:hunter2@127.0.0.1:1")
    target = tmp_path / "report.tar.gz"
    run(["doctor", "--log-dir", str(tmp_path / "log"), "--bundle", str(target)])
    with tarfile.open(target) as archive:
        found = {name: archive.extractfile(name) for name in archive.getnames()}
        texts = {name: body.read().decode() for name, body in found.items() if body is not None}
    names = {"doctor", "settings", "environment", "files", "status", "partitions"}
    assert set(texts) == {f"{name}.json" for name in names}
    assert {each["topic"] for each in json.loads(texts["partitions.json"])} == {"t"}
    assert "AWS_SECRET_ACCESS_KEY" in json.loads(texts["environment.json"])
    assert json.loads(texts["files.json"])[f"t-0/{0:020d}.log"] > 0
    assert [name for name, text in texts.items() if "wJalrXUtnFEMI" in text or "hunter2" in text] == []
    before = target.read_bytes()
    assert run(["doctor", "--bundle", str(target)]) == 2
    assert target.read_bytes() == before
    assert run(["doctor", "--bundle", str(tmp_path / "none" / "x.tar.gz")]) == 2
