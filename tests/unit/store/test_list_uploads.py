"""Unfinished multipart uploads: of a server that takes a prefix for a key the bucket's are listed, page by page."""

from __future__ import annotations

from typing import Any

import pytest

from tiered.errors import ConfigError
from tiered.store.base import ListUploads, Outcome, StoreRequest, UploadPage
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.store.s3_requests import S3Target, call_for, outcome_of
from tiered.store.steps import list_unfinished

TARGET = S3Target("bucket", "our/prefix")
OURS = ["our/prefix/a3/t/s/w1/1.log", "our/prefix/a3/t/s/w1/2.log"]
OTHERS = ["our/prefix2/a3/t/s/w1/1.log", "our/prefix/b7/u/s/w1/1.log", "somebody else's", "our/pre"]


class Server:
    """Answers list_multipart_uploads two at a time, in the order of keys."""

    url = "s3://bucket/our/prefix"

    def __init__(self, name: str, *, by_key: bool) -> None:
        self.name, self.by_key = name, by_key
        self.asked: list[dict[str, Any]] = []

    def execute(self, request: StoreRequest) -> Outcome:
        call = call_for(TARGET, request)
        assert call.method == "list_multipart_uploads"
        self.asked.append(call.parameters)
        prefix, after = call.parameters.get("Prefix", ""), call.parameters.get("KeyMarker", "")
        fits = [key for key in sorted(OURS + OTHERS) if key > after]
        if prefix:
            fits = [key for key in fits if (key == prefix if self.by_key else key.startswith(prefix))]
        response: dict[str, Any] = {
            "Bucket": "bucket",
            "Uploads": [{"Key": key, "UploadId": f"id of {key}"} for key in fits[:2]],
            "IsTruncated": len(fits) > 2,
            "ResponseMetadata": {"HTTPHeaders": {"server": self.name}},
        }
        if len(fits) > 2:
            response |= {"NextKeyMarker": fits[1], "NextUploadIdMarker": f"id of {fits[1]}"}
        return outcome_of(TARGET, request, response)

    def close(self) -> None:
        """Nothing is open."""


def test_minio_is_asked_for_the_bucket_and_what_is_not_below_the_prefix_is_left_out() -> None:
    server = Server("MinIO", by_key=True)
    found, _ = drive(server, list_unfinished("a3/t/"))
    assert [(each.key, each.upload_id) for each in found] == [
        (key.removeprefix("our/prefix/"), f"id of {key}") for key in OURS
    ]
    assert ["Prefix" in asked for asked in server.asked] == [True, False, False, False]
    assert [asked.get("KeyMarker") for asked in server.asked] == [None, None, OURS[0], OTHERS[1]]


def test_others_are_asked_by_prefix_alone() -> None:
    server = Server("AmazonS3", by_key=False)
    found, _ = drive(server, list_unfinished("a3/t/"))
    assert [each.key for each in found] == [key.removeprefix("our/prefix/") for key in OURS]
    assert [asked["Prefix"] for asked in server.asked] == ["our/prefix/a3/t/"]


def test_a_page_of_the_bucket_goes_on_behind_a_key_that_is_not_ours() -> None:
    """The marker is the store's own key, not one below our prefix."""
    answer = outcome_of(
        TARGET,
        ListUploads("a3/", everywhere=True),
        {"Bucket": "bucket", "IsTruncated": True, "NextKeyMarker": "zzz", "NextUploadIdMarker": "7"},
    )
    again = call_for(TARGET, ListUploads("a3/", answer.after, everywhere=True))  # type: ignore[union-attr, arg-type]
    assert (again.parameters["KeyMarker"], again.parameters["UploadIdMarker"]) == ("zzz", "7")


def test_a_page_of_uploads_that_does_not_advance_is_an_error() -> None:
    class Stuck(MemoryStore):
        def __init__(self, pages: list[tuple[str, str]]) -> None:
            super().__init__()
            self.pages = pages

        def execute(self, request: StoreRequest) -> Outcome:
            assert isinstance(request, ListUploads)
            return UploadPage((), self.pages.pop(0))

    for pages in ([("a", "1"), ("a", "2"), ("a", "2")], [("b", "1"), ("a", "1")], [("", "")]):
        store = Stuck(pages)
        with pytest.raises(ConfigError, match="does not advance"):
            drive(store, list_unfinished("a3/t/"))
        assert store.pages == []


def test_a_page_that_says_there_is_more_and_not_where_has_a_marker_that_does_not_advance() -> None:
    request = ListUploads("a3/t/")
    found = outcome_of(TARGET, request, {"Bucket": "bucket", "IsTruncated": True, "ResponseMetadata": {}})
    assert isinstance(found, UploadPage)
    assert found.after == request.after
